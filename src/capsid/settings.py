"""Self-describing hyperparameters: each field of a part declares its default, a one-sentence description and bounds.

Checks and help texts are derived from that declaration. Rules about several fields stay with the part. Knows no
concrete part.

    steps: int = setting(5_000, "How many optimiser steps to train for.", least=1)
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, dataclass
from typing import Any, Protocol, runtime_checkable

from capsid.errors import ConfigError, nearest

_KEY = "setting"
_NOUNS: dict[type, tuple[str, str]] = {
    int: ("a whole number", "whole numbers"),
    float: ("a finite number", "finite numbers"),
    bool: ("true or false", "truth values"),
    str: ("a string", "strings"),
}
# Longest value shown in a message, in characters.
LONGEST = 60
# Cache of rules by class: parts are created often, their fields never change.
_RULES: dict[type, tuple[Rule, ...]] = {}


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Allowed values: limits of a number (or of each number in a tuple), choices of a string, number of elements."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    count: tuple[int, int | None] | None = None

    def holds(self, value: Any) -> bool:
        """Whether one number or text is within the bounds; unset limits are ignored."""
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
            and (not self.choices or value in self.choices)
        )

    @property
    def text(self) -> str:
        """The limits in words, to follow "must be"; empty if there are none."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.least is not None and self.most is not None:
            return f"from {self.least:g} to {self.most:g}"
        limits = {"at least": self.least, "above": self.above, "at most": self.most, "below": self.below}
        return " and ".join(f"{words} {limit:g}" for words, limit in limits.items() if limit is not None)


def setting(
    default: Any = MISSING,
    about: str = "",
    *,
    factory: Callable[[], Any] | None = None,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Iterable[str] = (),
    count: int | tuple[int, int | None] | None = None,
    formerly: str | tuple[str, ...] = (),
) -> Any:
    """Declare a hyperparameter of a dataclass: its default (if any), its description and its allowed values. `count` is
    the number of elements of a tuple (or characters of a string): exact, or (fewest, most). `formerly` lists names that
    the field had in files of earlier versions."""
    exact = (count, count) if isinstance(count, int) else count
    bounds = Bounds(least=least, most=most, above=above, below=below, choices=tuple(choices), count=exact)
    names = (formerly,) if isinstance(formerly, str) else formerly
    declared = {_KEY: (about, bounds, names)}
    if factory is not None:
        return dataclasses.field(default_factory=factory, metadata=declared)
    return dataclasses.field(default=default, metadata=declared)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A field's description, and what its annotation and bounds require of a value."""

    name: str
    about: str
    formerly: tuple[str, ...]
    bounds: Bounds
    base: type | None
    """Type of the value, or of a tuple's elements; None if any type is allowed."""
    many: bool
    optional: bool

    @property
    def type_name(self) -> str:
        """Type name for help and JSON: int, float, bool, text, part, or a list of one of them."""
        known = {int: "int", float: "float", bool: "bool", str: "text"}
        name = known.get(self.base, "part") if self.base is not None else "part"
        return f"{name} list" if self.many else name

    @property
    def text(self) -> str:
        """The allowed values in words."""
        noun = self._noun
        limits = self.bounds.text
        if self.many:
            number = self._number(noun)
            return f"{number}, each {limits}" if limits else number
        if self.bounds.choices:
            return limits
        if self.base is str and self.bounds.count is not None:
            return "a non-empty string"
        allowed = f"{noun} {limits}".strip() if self.base is not bool else noun
        return f"{allowed}, or none" if allowed and self.optional else allowed

    @property
    def _noun(self) -> str:
        if self.base in _NOUNS:
            return _NOUNS[self.base][self.many]
        if self.base is None:
            return "parts" if self.many else ""
        kind = getattr(self.base, "kind", self.base.__name__)
        return f"parts of kind {kind}" if self.many else f"a part of kind {kind}"

    def _number(self, noun: str) -> str:
        fewest, most = self.bounds.count or (0, None)
        if fewest == most:
            return f"{fewest} {noun}"
        if most is not None:
            return f"{fewest} to {most} {noun}"
        return f"{fewest} or more {noun}" if fewest else noun

    def broken_by(self, value: Any) -> str | None:
        """The rule that the value breaks, in words; None if it is allowed."""
        if value is None and self.optional:
            return None
        if self.many and not isinstance(value, tuple | list):
            return self.text
        each = value if self.many else (value,)
        if not all(self._typed(v) for v in each):
            return self.text
        counted = value if self.many or self.base is str else None
        fewest, most = self.bounds.count or (0, None)
        if counted is not None and (len(counted) < fewest or (most is not None and len(counted) > most)):
            return self.text
        if all(self.bounds.holds(v) for v in each):
            return None
        return self.text if self.many else self.bounds.text

    def _typed(self, value: Any) -> bool:
        if self.base is None:
            return True
        if self.base is float:
            return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
        if self.base is int:
            return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
        return isinstance(value, self.base)


class SettingError(ConfigError):
    """A value that its field does not allow. `at` adds the dotted path of the part, if the caller knows it."""

    def __init__(self, where: str, rule: Rule, allowed: str, value: Any) -> None:
        self.rule, self.allowed, self.value = rule, allowed, value
        choices = rule.bounds.choices
        hint = nearest(value, choices) if choices and isinstance(value, str) else rule.about
        name = f"{where}.{rule.name}" if where else rule.name
        super().__init__(f"{name} must be {allowed}, got {short(value)}", hint=hint or None)

    def at(self, where: str) -> SettingError:
        """The same error for a part at the dotted path `where`."""
        return SettingError(where, self.rule, self.allowed, self.value)


def short(value: Any, longest: int = LONGEST) -> str:
    """A value for a message, cut if it is long."""
    if isinstance(value, int) and value.bit_length() > 1000:
        return f"a number of {value.bit_length():,} bits"  # Python refuses to print it.
    text = repr(value)
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text):,} characters)"


def check_settings(part: object) -> None:
    """Raise if any field of a part breaks its rule. Every part calls this when it is created."""
    for rule in rules_of(type(part)):
        value = getattr(part, rule.name)
        allowed = rule.broken_by(value)
        if allowed is not None:
            raise SettingError(getattr(part, "kind", type(part).__name__), rule, allowed, value)


@runtime_checkable
class ChecksTogether(Protocol):
    """A part with rules about several fields. They are checked after all settings are applied, not after each one."""

    def check_together(self) -> None:
        """Raise if fields are valid on their own but cannot be combined."""


class Checked:
    """Base of parts that have no other work when they are made: their settings are checked."""

    def __post_init__(self) -> None:
        check_settings(self)


def check_together(part: object) -> None:
    """Check rules about several fields, in a part and the parts inside it. Call this before starting work."""
    if isinstance(part, ChecksTogether):
        part.check_together()
    for rule in rules_of(type(part)):
        value = getattr(part, rule.name)
        for inner in value if isinstance(value, tuple) else (value,):
            if dataclasses.is_dataclass(inner):
                check_together(inner)


def rules_of(cls: type) -> tuple[Rule, ...]:
    """The rule of every field of a part, in field order; undeclared fields have no description and no bounds."""
    if cls not in _RULES:
        hints = typing.get_type_hints(cls)
        _RULES[cls] = tuple(_rule(field, hints[field.name]) for field in dataclasses.fields(cls))
    return _RULES[cls]


def _rule(field: dataclasses.Field[Any], hint: Any) -> Rule:
    about, bounds, formerly = field.metadata.get(_KEY, ("", Bounds(), ()))
    wanted = [hint]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        wanted = [a for a in typing.get_args(hint) if a is not type(None)]
    optional = hint is Any or type(None) in typing.get_args(hint)
    base = wanted[0] if len(wanted) == 1 else None
    many = typing.get_origin(base) is tuple
    if many:
        base = typing.get_args(base)[0]
    if typing.get_origin(base) is typing.Literal:
        bounds = dataclasses.replace(bounds, choices=tuple(map(str, typing.get_args(base))))
        base = str
    checkable = isinstance(base, type) and (base in _NOUNS or dataclasses.is_dataclass(base))
    wanted_type = base if checkable else None
    named = {"name": field.name, "about": about, "formerly": formerly, "bounds": bounds}
    return Rule(**named, base=wanted_type, many=many, optional=optional)


@dataclass(frozen=True)
class Explained:
    """A setting with the dotted path that sets it, its value and its rule."""

    path: str
    value: Any
    rule: Rule

    def to_dict(self) -> dict[str, Any]:
        limits = {k: v for k, v in dataclasses.asdict(self.rule.bounds).items() if v not in (None, ())}
        about = {"type": self.rule.type_name, "allowed": self.rule.text, "bounds": limits, "about": self.rule.about}
        value = list(self.value) if isinstance(self.value, tuple) else self.value
        return {"path": self.path, "value": value, **about}


def explain(part: Any, above: str = "") -> Iterator[Explained]:
    """Every setting of a part and of the parts inside it, in field order; the value of a part is its kind."""
    for rule in rules_of(type(part)):
        value, path = getattr(part, rule.name), f"{above}.{rule.name}" if above else rule.name
        if dataclasses.is_dataclass(value):
            yield Explained(path, getattr(value, "kind", type(value).__name__), rule)
            yield from explain(value, path)
        elif isinstance(value, tuple) and any(dataclasses.is_dataclass(v) for v in value):
            kinds = tuple(getattr(v, "kind", type(v).__name__) for v in value)
            yield Explained(path, kinds, rule)
            for i, one in enumerate(value):
                yield from explain(one, f"{path}.{i}")
        else:
            yield Explained(path, value, rule)
