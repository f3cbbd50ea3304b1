"""Dataclasses as configuration: to and from plain JSON values, fingerprints, overrides, differences.

A *part* is a keyword-only dataclass with a class attribute ``kind``. It is stored as a dictionary that includes its
kind, and read back through a literal table of kinds, never through a dotted path in a file. Knows no concrete part.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
import typing
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from capsid.base.release_0_1 import RETIRED
from capsid.errors import ConfigError, nearest
from capsid.settings import SettingError, rules_of

PARTS = "capsid.parts"
RECIPES = "capsid.recipes"


def installed_names(group: str) -> list[str]:
    """Sorted names that installed packages declare in a group."""
    return sorted(entry_points(group=group).names)


def installed_part(kind: str) -> type | None:
    """The class of that kind; None if no package declares it.

    Only the installed packages decide which class a kind is: a file never names code. A part is imported only when it
    is requested by name.
    """
    found = _load(PARTS, kind)
    if found is None:
        return None
    if not isinstance(found, type) or not dataclasses.is_dataclass(found):
        raise ConfigError(f"the entry point {kind!r} of {PARTS} must name a dataclass, got {found!r}")
    own = getattr(found, "kind", None)
    if own != kind:
        raise ConfigError(f"the entry point {kind!r} of {PARTS} must name a class of that kind, got kind {own!r}")
    return found


def installed_recipe(name: str) -> object | None:
    """The recipe of that name; None if no package declares it."""
    return _load(RECIPES, name)


def _load(group: str, name: str) -> object | None:
    found = list(entry_points(group=group, name=name))
    if not found:
        return None
    values = sorted({entry.value for entry in found})
    if len(values) > 1:
        raise ConfigError(
            f"{len(values)} packages declare {name!r} in {group}: {', '.join(values)}",
            hint="uninstall all but one of them",
        )
    try:
        loaded: object = found[0].load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{name!r} of {group} cannot be imported from {values[0]}: {error}") from error
    return loaded


Kinds = Mapping[str, type]


class UnknownKindError(ConfigError):
    """The kind of a part is not built in, not passed by the caller and not declared by an installed package."""

    def __init__(self, kind: str, kinds: Kinds) -> None:
        hint = f"{nearest(kind[:60], kinds)}; for a part of another package install that package, or pass kinds="
        super().__init__(f"unknown kind of part {kind!r:.60}", hint=hint)


def to_dict(value: Any) -> Any:
    """A part as plain JSON values: hyperparameters only, no learnt state."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        out: dict[str, Any] = {}
        kind = getattr(type(value), "kind", None)
        if kind is not None:
            out["kind"] = kind
        for field in dataclasses.fields(value):
            out[field.name] = to_dict(getattr(value, field.name))
        return out
    if isinstance(value, Mapping):
        return {str(k): to_dict(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_dict(v) for v in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise ConfigError(f"a configuration cannot hold a {type(value).__name__}: {value!r}")


def from_dict(cls: type | None, data: Any, kinds: Kinds) -> Any:
    """The part that `to_dict` described; unknown keys and kinds are errors."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"expected a mapping for {cls.__name__ if cls else 'a part'}, got {data!r}")
    data = dict(data)
    kind = data.pop("kind", None)
    # If the field has a fixed type, no lookup is needed.
    if kind is not None and getattr(cls, "kind", None) != kind:
        cls = kinds.get(kind) or installed_part(str(kind))
        if cls is None:
            raise UnknownKindError(str(kind), kinds)
    if cls is None:
        raise ConfigError("a part has no kind", hint="the dictionary of every part needs the key 'kind'")
    hints = typing.get_type_hints(cls)
    # A file of an earlier version may have other names, and fields that were dropped since.
    given = _as_named_today(cls, data)
    for key in given:
        _require_field(cls, key)
    return cls(**{key: _coerce(value, hints[key], kinds) for key, value in given.items()})


def kinds_of(value: Any) -> dict[str, type]:
    """The classes of a part and of all parts in it, by kind: enough to read the same value back from a file."""
    if isinstance(value, list | tuple):
        return {kind: cls for inner in value for kind, cls in kinds_of(inner).items()}
    if isinstance(value, Mapping):
        return kinds_of(list(value.values()))
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return {}
    found = kinds_of([getattr(value, field.name) for field in dataclasses.fields(value)])
    kind = getattr(type(value), "kind", None)
    return found if kind is None else {kind: type(value), **found}


def canonical_json(value: Any) -> str:
    """The same text for the same configuration, regardless of key order."""
    return json.dumps(to_dict(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def fingerprint(*values: Any) -> str:
    """Sixteen hex digits that change if any of the values changes."""
    digest = hashlib.sha256()
    for value in values:
        digest.update(canonical_json(value).encode())
        digest.update(b"\0")
    return digest.hexdigest()[:16]


def override(part: Any, path: str, text: str, kinds: Kinds | None = None) -> Any:
    """A copy of `part` with the field at the dotted `path` set from `text`, typed by the field.

    A number in the path selects an element of a tuple: ``schedule.0.steps``. If the field takes a part, the name of a
    kind stands for that part with its defaults: ``generator=transformer``.
    """
    return _override(part, path, text, kinds or {}, above=())


def _override(part: Any, path: str, text: str, kinds: Kinds, above: tuple[str, ...]) -> Any:
    head, _, rest = path.partition(".")
    if isinstance(part, tuple):
        if not head.isdigit() or int(head) >= len(part):
            raise ConfigError(f"{head!r} does not select one of {len(part)} elements", hint="count from 0")
        i = int(head)
        new = _override(part[i], rest, text, kinds, (*above, head)) if rest else _parse(text, type(part[i]))
        return (*part[:i], new, *part[i + 1 :])
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        name = ".".join(above)
        raise ConfigError(
            f"cannot set {name}.{path}: {name} is a value without fields", hint=f"write {name}=value to set it"
        )
    _require_field(type(part), head)
    try:
        if rest:
            value = _override(getattr(part, head), rest, text, kinds, (*above, head))
        else:
            hint = typing.get_type_hints(type(part))[head]
            name = ".".join((*above, head))
            types_ = [a for a in typing.get_args(hint) if a is not type(None)] or [hint]
            is_part = any(a is Any or dataclasses.is_dataclass(a) or _is_protocol(a) for a in types_)
            value = _named(text, hint, kinds, name) if is_part else _parse(text, hint)
    except _Unreadable:
        rule = next(r for r in rules_of(type(part)) if r.name == head)
        raise SettingError(".".join(above), rule, rule.text, text) from None
    try:
        return dataclasses.replace(part, **{head: value})
    except SettingError as error:
        raise error.at(".".join(above)) from None


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted path to leaf, for printing and for `difference`."""
    plain = to_dict(value)
    out: dict[str, Any] = {}

    def walk(node: Any, path: str) -> None:
        if isinstance(node, dict) and node:
            for key, child in node.items():
                walk(child, f"{path}.{key}" if path else key)
        elif isinstance(node, list) and _holds_parts(node):
            for i, child in enumerate(node):
                walk(child, f"{path}.{i}")
        else:
            out[path] = node

    walk(plain, prefix)
    return out


def _holds_parts(node: Any) -> bool:
    return isinstance(node, dict) or (isinstance(node, list) and any(map(_holds_parts, node)))


def difference(a: Any, b: Any) -> dict[str, tuple[Any, Any]]:
    """Every dotted path whose value differs; if one side lacks the path, its value is None.

    If one side nests a part inside another part, the two are compared at the nested path.
    """
    plain_a, plain_b = to_dict(a), to_dict(b)
    left, right = flatten(_as_nested(plain_a, plain_b)), flatten(_as_nested(plain_b, plain_a))
    paths = list(left) + [p for p in right if p not in left]
    return {p: (left.get(p), right.get(p)) for p in paths if left.get(p) != right.get(p)}


def _as_nested(value: Any, other: Any) -> Any:
    """Plain values, with each part moved to the nested place that a part of its kind has on the other side."""
    if not isinstance(value, Mapping) or not isinstance(other, Mapping):
        return value
    kind = value.get("kind")
    if kind is not None and kind != other.get("kind"):
        for name, part in other.items():
            if isinstance(part, Mapping) and part.get("kind") == kind:
                return {name: _as_nested(value, part)}
    return {name: _as_nested(part, other.get(name)) for name, part in value.items()}


def _dropped(cls: type) -> Mapping[str, str]:
    """Removed fields of a part, each with what to do instead: ignored in files, refused in settings."""
    dropped: Mapping[str, str] = getattr(cls, "dropped", {})
    return dropped


def _retired(cls: type) -> Mapping[str, Any]:
    """Fields of a part that have become constants."""
    return RETIRED.get(getattr(cls, "kind", ""), {})


def _require_field(cls: type, name: str) -> None:
    names = [f.name for f in dataclasses.fields(cls)]
    if name not in names:
        renamed = next((f"it is now called {r.name!r}" for r in rules_of(cls) if name in r.formerly), None)
        fixed = f"it is always {_retired(cls)[name]}" if name in _retired(cls) else None
        hint = renamed or fixed or _dropped(cls).get(name) or nearest(name, names)
        raise ConfigError(f"{cls.__name__} has no field {name!r}", hint=hint)


def _as_named_today(cls: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """Values from a file of an earlier version, under the current field names, without those that became constants."""
    retired = _retired(cls)
    for key in data.keys() & retired.keys():
        if data[key] != retired[key]:
            raise ConfigError(f"{cls.__name__}.{key} must be {retired[key]}, got {data[key]!r}", hint="fit again")
    now = {old: rule.name for rule in rules_of(cls) for old in rule.formerly}
    gone = _dropped(cls).keys() | retired.keys()
    return {now.get(key, key): value for key, value in data.items() if key not in gone}


def _coerce(value: Any, hint: Any, kinds: Kinds) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return _coerce(value, next(a for a in args if a is not type(None)), kinds)
    if isinstance(value, Mapping):
        if origin is dict or hint is dict or (origin is not None and issubclass(origin, Mapping)):
            return dict(value)
        return from_dict(hint if isinstance(hint, type) else None, value, kinds)
    if isinstance(value, list):
        if args and args[-1] is not Ellipsis and len(args) == len(value):
            return tuple(_coerce(v, inner, kinds) for v, inner in zip(value, args))
        inner = args[0] if args else Any
        return tuple(_coerce(v, inner, kinds) for v in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value


def _is_protocol(hint: Any) -> bool:
    """Whether a field takes any part that implements a protocol, not one fixed class."""
    return isinstance(hint, type) and getattr(hint, "_is_protocol", False)


def _named(text: str, hint: Any, kinds: Kinds, path: str) -> Any:
    """The part of that kind with its defaults, or None if the field is optional; `path` is for messages.

    A field with several parts takes several kinds: ``other_ids=id-system,id-system``, or none: ``other_ids=``.
    """
    wanted = typing.get_args(hint) or (hint,)
    if typing.get_origin(hint) is tuple:
        return tuple(_named(one.strip(), wanted[0], kinds, path) for one in text.split(",") if one.strip())
    if text.lower() in ("none", "null") and type(None) in wanted:
        return None
    open_to_all = Any in wanted or any(map(_is_protocol, wanted))
    allowed = {k: c for k, c in kinds.items() if open_to_all or c in wanted}
    if text not in allowed:
        fixed = f"set its fields, such as {path}.field=value"
        raise ConfigError(f"{path} cannot be {text!r:.60}", hint=nearest(text[:60], allowed) if allowed else fixed)
    kind = allowed[text]
    required = [f.name for f in dataclasses.fields(kind) if f.default is f.default_factory is dataclasses.MISSING]
    if required:
        raise ConfigError(
            f"{text!r} has no default for {', '.join(required)}, so it cannot be chosen by its name",
            hint="choose a recipe that has this part, or build the recipe in Python",
        )
    return kind()


class _Unreadable(Exception):
    """A text cannot be read as a value of the field's type."""


def _parse(text: str, hint: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if text.lower() in ("none", "null") and type(None) in args:
            return None
        return _parse(text, next(a for a in args if a is not type(None)))
    if origin is typing.Literal:
        if text not in args:
            raise _Unreadable
        return text
    if origin is tuple:
        parts = [p.strip() for p in text.strip("()[] ").split(",") if p.strip()]
        inner = args[0] if args else str
        return tuple(_parse(p, inner) for p in parts)
    if hint is bool:
        known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if text.lower() not in known:
            raise _Unreadable
        return known[text.lower()]
    if hint in (int, float):
        try:
            return hint(text)
        except ValueError:
            raise _Unreadable from None
    if hint is str:
        return text
    raise ConfigError(f"a {getattr(hint, '__name__', hint)} cannot be set from text", hint="set one of its fields")
