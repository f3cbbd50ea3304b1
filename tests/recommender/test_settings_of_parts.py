"""Every hyperparameter of every part has a sentence, and every bound it declares is enforced."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest

from capsid.encode.text import HashingEncoder
from capsid.errors import ConfigError
from capsid.recipe import KINDS, Recipe
from capsid.recipes import RECIPES, get_recipe
from capsid.settings import Rule, SettingError, check_together, explain, rules_of

REQUIRED: dict[str, dict[str, Any]] = {
    "joined": {"parts": (HashingEncoder(),)},
    "precomputed": {"path": "vectors.npy"},
    "views": {"item": HashingEncoder()},
}
PARTS = {kind: cls(**REQUIRED.get(kind, {})) for kind, cls in KINDS.items()} | {"recipe": RECIPES["capsid-bpe"]}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_every_field_has_one_sentence(part: Any) -> None:
    for rule in rules_of(type(part)):
        assert rule.about, f"{type(part).__name__}.{rule.name} has no sentence: declare it with setting(...)"
        assert rule.about[0].isupper(), rule.about
        assert rule.about.endswith("."), rule.about
        assert len(rule.about) <= 110, f"too long for a table: {rule.about}"


def outside(rule: Rule) -> Iterator[Any]:
    """Values that break the rule, one for each thing it demands."""
    bounds, whole = rule.bounds, rule.base is int
    each: list[Any] = []
    if bounds.least is not None:
        each.append(int(bounds.least) - 1 if whole else math.nextafter(bounds.least, -math.inf))
    if bounds.most is not None:
        each.append(int(bounds.most) + 1 if whole else math.nextafter(bounds.most, math.inf))
    each += [limit for limit in (bounds.above, bounds.below) if limit is not None]
    each += {int: [1.5, "x"], float: [math.nan, math.inf, "x"], str: [3], bool: [7]}.get(rule.base, [])  # type: ignore[call-overload]
    each += ["no such choice"] if bounds.choices else []
    yield from ((value,) * max(1, (bounds.count or (1, 0))[0]) if rule.many else value for value in each)
    fewest, most = bounds.count or (0, None)
    filler = "x" if rule.base is str and not rule.many else (0,)
    if fewest:
        yield filler[:0]
    if most is not None:
        yield filler * (most + 1)


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_every_bound_is_enforced(part: Any) -> None:
    for rule in rules_of(type(part)):
        for value in outside(rule):
            with pytest.raises(SettingError, match=rf"{rule.name} must be "):
                dataclasses.replace(part, **{rule.name: value})


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_the_limits_themselves_are_allowed(part: Any) -> None:
    for rule in rules_of(type(part)):
        limits = [limit for limit in (rule.bounds.least, rule.bounds.most) if limit is not None]
        limits += list(rule.bounds.choices)  # type: ignore[arg-type]
        for limit in limits:
            value = int(limit) if rule.base is int else limit
            many = (value,) * max(1, (rule.bounds.count or (1, 0))[0])
            dataclasses.replace(part, **{rule.name: many if rule.many else value})


@pytest.mark.parametrize(
    ("recipe", "text", "message"),
    [
        ("rq-kmeans", "tokenizer.restarts=0", "tokenizer.restarts must be at least 1, got 0"),
        ("rq-kmeans", "tokenizer.codebooks=0,4", r"tokenizer.codebooks must be 1 or more .* at least 1, got \(0, 4\)"),
        ("sasrec", "schedule.0.training.beta2=1", "schedule.0.training.beta2 must be at least 0 and below 1, got 1.0"),
        ("sasrec", "schedule.0.training.clip=nan", "schedule.0.training.clip must be a finite number above 0, got nan"),
        ("tiger", "decoder.width=-5", "decoder.width must be at least 1, got -5"),
        ("tiger", "objective.0.label_smoothing=2", "objective.0.label_smoothing must be at least 0 and below 1, got 2"),
        ("tiger", "collisions.capacity=-1", "collisions.capacity must be at least 0, got -1"),
        ("capsid-bpe", "merges.training.batch_size=0", "merges.training.batch_size must be at least 1, got 0"),
        ("capsid", "encoder.parts.0.max_tokens=2", "encoder.parts.0.max_tokens must be at least 3, got 2"),
    ],
)
def test_bad_values_are_refused_before_any_work(recipe: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}") as caught:
        get_recipe(recipe).with_settings([text])
    assert caught.value.hint


def test_a_broken_value_in_a_file_is_refused() -> None:
    data = RECIPES["tiger"].to_dict()
    data["decoder"]["width"] = "wide"
    with pytest.raises(ConfigError, match=r"beam\.width must be a whole number at least 1, got 'wide'"):
        Recipe.from_dict(data)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_every_setting_that_is_shown_can_be_set_by_its_path(recipe: Recipe) -> None:
    shown = [s for s in explain(recipe) if s.rule.type_name not in ("part", "part list")]
    assert shown
    for setting in shown:
        text = ",".join(map(str, setting.value)) if isinstance(setting.value, tuple) else str(setting.value)
        if setting.path != "deviations":
            assert recipe.with_settings([f"{setting.path}={text}"]) == recipe, setting.path


def test_fields_that_must_fit_together_are_checked_when_all_settings_are_made() -> None:
    recipe = get_recipe("bert4rec")
    assert recipe.with_settings(["generator.width=33", "generator.heads=3"]).generator.width == 33
    with pytest.raises(ConfigError, match=r"width must be a multiple of generator\.heads, got 33 and 2") as caught:
        recipe.with_settings(["generator.width=33"])
    assert caught.value.hint == "the nearest width is 32"
    by_hand = dataclasses.replace(recipe, generator=dataclasses.replace(recipe.generator, width=33))
    with pytest.raises(ConfigError, match="must be a multiple"):
        check_together(by_hand)
