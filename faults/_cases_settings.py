"""Settings that cannot work: for every setting of every recipe, values outside its bounds and of the wrong type.

They are refused before data is read: the commands name a dataset that does not exist.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from _cases import Answer, Case, World, capsid

from capsid.recipes import RECIPES
from capsid.settings import Explained, Rule, explain

HUGE = "9" * 5_000


def cases() -> Iterator[Case]:
    """Every setting of every recipe, and settings that are no settings."""
    for recipe in RECIPES:
        for setting in explain(RECIPES[recipe]):
            if "." in setting.path or setting.rule.type_name == "part":
                yield from (_case(recipe, setting.path, value) for value in outside(setting))
    for recipe in RECIPES:
        for text in ODD:
            yield Case("settings", f"{recipe} --set {text[:40]!r}", lambda w, r=recipe, t=text: _fit(r, t))


ODD = (
    "",
    "=",
    "x",
    "=1",
    "generator",
    "generator.",
    ".width=3",
    "generator..width=3",
    "no.such=1",
    "schedule.9.x=1",
    "schedule.-1.training.steps=3",
    "schedule.x=1",
    "schedule=",
    "tokenizer=no-such",
    "generator.width.x=1",
)


def _case(recipe: str, path: str, value: str) -> Case:
    act = lambda w, text=f"{path}={value}": _fit(recipe, text)  # noqa: E731
    return Case("settings", f"{recipe} {path}={value[:30]}", act, says=path.split(".")[-1])


def _fit(recipe: str, setting: str) -> Answer:
    return capsid("fit", recipe, "--data", "no such data", "--out", "no/such/place", "--set", setting)


def outside(setting: Explained) -> Iterator[str]:
    """Values that break the rule: one beyond each limit, and one of the wrong type."""
    rule, bounds = setting.rule, setting.rule.bounds
    values: list[Any] = []
    if rule.type_name == "part":
        values.append("no-such-part")
    if bounds.least is not None:
        values.append(int(bounds.least) - 1 if rule.base is int else math.nextafter(bounds.least, -math.inf))
    if bounds.most is not None:
        values.append(int(bounds.most) + 1 if rule.base is int else math.nextafter(bounds.most, math.inf))
    values += [limit for limit in (bounds.above, bounds.below) if limit is not None]
    values += _wrong_type(rule)
    yield from map(str, values)


def _wrong_type(rule: Rule) -> list[str]:
    if rule.bounds.choices:
        return ["no such choice"]
    return {int: ["1.5", HUGE], float: ["nan", "many"], bool: ["perhaps"]}.get(rule.base, [])  # type: ignore[call-overload]


def about(world: World) -> int:
    """How many settings there are, for the report."""
    return sum(1 for recipe in RECIPES.values() for _ in explain(recipe))
