"""The files around the code agree with it: versions, pins, targets, and nothing of one machine anywhere."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import capsid

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "capsid"
TEXT = {".py", ".md", ".toml", ".txt", ".cff", ".svg", ".html", ".css", ".js", ".yml", ".yaml", ".json", ".sh", ""}
# Written so that no pattern matches its own text here.
FORBIDDEN = {
    "a path of one machine": r"(?<![\w.:/-])/(?:root|home|work|opt|Users|tmp/dev)/\w",
    "the host of a package registry": r"pypi\.org|pythonhosted\.org|registry\.npmjs",
    "a document that is not here": r"\bmethods \d|\((?:the )?protocol\)|\((?:the )?paper,|\bmethods\.md|\bpaper\.tex",
    "unfinished work": r"\b(?:TO[D]O|FIX[M]E|XX[X])\b",
}


def project_files() -> list[Path]:
    """Text files that belong to the project: what git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listing.returncode == 0:
        paths = [ROOT / name for name in listing.stdout.splitlines()]
    else:  # an unpacked archive without git
        paths = [p for top in ("src", "tests", "docs", "benchmarks", "faults") for p in (ROOT / top).rglob("*")]
    return [p for p in paths if p.is_file() and p.suffix in TEXT and "__pycache__" not in p.parts]


def forbidden_in(text: str) -> list[str]:
    return [what for what, pattern in FORBIDDEN.items() if re.search(pattern, text)]


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def declared_requirements() -> list[Requirement]:
    project = pyproject()["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    return [Requirement(text) for group in groups for text in group]


def installed_needs(requirements: list[Requirement]) -> set[str]:
    """Names of everything these requirements pull in here, through any number of steps."""
    seen: set[tuple[str, str]] = set()
    waiting = [(r.name, extra) for r in requirements for extra in ("", *r.extras)]
    while waiting:
        name, extra = waiting.pop()
        if (canonicalize_name(name), extra) in seen:
            continue
        seen.add((canonicalize_name(name), extra))
        for text in metadata.requires(name) or []:
            need = Requirement(text)
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                waiting += [(need.name, e) for e in ("", *need.extras)]
    return {name for name, _ in seen}


def test_torch_is_pinned_and_ranged() -> None:
    assert pins()["torch"] == "2.13.0"
    (torch,) = [r for r in declared_requirements() if r.name == "torch"]
    assert not any(s.operator == "==" for s in torch.specifier), "pyproject keeps a range, constraints.txt the pin"


def test_every_declared_requirement_has_a_fitting_pin() -> None:
    known = pins()
    for need in declared_requirements() + [Requirement(r) for r in pyproject()["build-system"]["requires"]]:
        assert need.specifier.contains(known[canonicalize_name(need.name)]), need


def test_every_transitive_requirement_is_pinned() -> None:
    needs = installed_needs(declared_requirements())
    assert {"torch", "numpy", "tokenizers"} <= needs
    assert needs - set(pins()) == set()


def test_one_version_everywhere() -> None:
    assert pyproject()["tool"]["hatch"]["version"]["path"] == "src/capsid/__init__.py"
    assert metadata.version("capsid-rec") == capsid.__version__
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(rf"^version: {re.escape(capsid.__version__)}$", citation, re.M)
    assert f"## [{capsid.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", capsid.__all__)
def test_public_name_exists(name: str) -> None:
    assert getattr(capsid, name) is not None


def test_no_file_names_a_machine_a_registry_or_unfinished_work() -> None:
    files = project_files()
    assert SOURCE / "__init__.py" in files
    found = {str(p.relative_to(ROOT)): forbidden_in(p.read_text(encoding="utf-8")) for p in files}
    assert {name: what for name, what in found.items() if what} == {}


@pytest.mark.parametrize(
    "text",
    [
        "(meth" + "ods 6.2, T1)",
        "then item id (proto" + "col)",
        "(pa" + "per, Eq. 3)",
        "see /ro" + "ot/x",
        "'/wo" + "rk/main'",
        "https://pypi" + ".org/simple",
        "# TO" + "DO later",
    ],
)
def test_forbidden_text_is_found(text: str) -> None:
    assert len(forbidden_in(text)) == 1


@pytest.mark.parametrize("text", ["https://example.org/home/page", "docs/work/plan", "the movies to do list"])
def test_harmless_text_is_not(text: str) -> None:
    assert forbidden_in(text) == []


def test_source_files_and_functions_can_be_read_at_once() -> None:
    too_long = []
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if text.count("\n") > 400:
            too_long.append(str(path.relative_to(ROOT)))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= 70:
                too_long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert too_long == []


def test_a_recipe_is_a_value() -> None:
    """A recipe file names parts and numbers; a loop or a function in it would be a trainer in disguise."""
    code = ast.FunctionDef | ast.ClassDef | ast.For | ast.While | ast.If | ast.Try | ast.Lambda
    files = [p for p in (SOURCE / "recipes").glob("*.py") if p.name not in ("__init__.py", "guide.py", "sizing.py")]
    assert files
    for path in files:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert all((n.end_lineno or 0) - n.lineno < 50 for n in tree.body), path.name
        assert not [n for n in ast.walk(tree) if isinstance(n, code)], path.name


def test_make_offers_what_the_readme_promises() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("setup", "demo", "test", "lint", "bench", "clean", "help"):
        assert re.search(rf"^{target}:.*## ", makefile, re.M), target
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert "make --no-print-directory test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_licence_and_type_marker_are_shipped() -> None:
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert (SOURCE / "py.typed").is_file()


def test_the_picture_shows_the_rooms_as_they_are() -> None:
    command = [sys.executable, str(ROOT / "tools" / "draw_architecture.py"), "--print"]
    drawn = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    shown = (ROOT / "docs" / "images" / "architecture.svg").read_text(encoding="utf-8")
    assert shown == drawn, "rooms changed: describe them in tools/draw_architecture.py and run it"
