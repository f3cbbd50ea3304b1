"""Which settings of a recipe are worth a search, and between which values. `capsid tune` searches them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from capsid.errors import ConfigError
from capsid.recipe import Recipe


@dataclass(frozen=True)
class Range:
    """Values from `low` to `high`; the settings at all `paths` get the same value."""

    paths: tuple[str, ...]
    low: float
    high: float
    log: bool = False
    whole: bool = False

    @property
    def name(self) -> str:
        """The first path."""
        return self.paths[0]

    @classmethod
    def parse(cls, text: str) -> Range:
        """From `part.field=LOW:HIGH` or `part.field=LOW:HIGH:log`."""
        path, _, bounds = text.partition("=")
        low, _, rest = bounds.partition(":")
        high, _, scale = rest.partition(":")
        try:
            found = cls((path.strip(),), float(low), float(high), scale == "log", "." not in low + high)
        except ValueError:
            found = None
        if found is None or scale not in ("", "log") or not found.low < found.high or (found.log and found.low <= 0):
            raise ConfigError(
                f"--range must be part.field=LOW:HIGH with LOW below HIGH, or LOW:HIGH:log above 0, got {text!r}",
                hint="such as generator.dropout=0.1:0.6",
            )
        return found


RANGES = (
    Range(("generator.dropout", "generator.embedding_dropout", "generator.hidden_dropout"), 0.1, 0.7),
    Range(("schedule.0.training.learning_rate",), 2e-4, 3e-3, log=True),
    Range(("generator.regularisation",), 10, 5_000, log=True),
    Range(("generator.neighbours",), 20, 2_000, log=True, whole=True),
    Range(("generator.decay",), 0.3, 1.0),
    Range(("memory.neighbours",), 20, 500, log=True, whole=True),
)


def ranges_of(recipe: Recipe, given: tuple[Range, ...] = ()) -> tuple[Range, ...]:
    """The ranges of the settings that a recipe has; those given take the place of the declared ones of that name."""
    named = {path for own in given for path in own.paths}
    own = [r for r in RANGES if not named & set(r.paths) and has(recipe, r.name)]
    missing = next((r.name for r in given if not has(recipe, r.name)), None)
    if missing is not None:
        raise ConfigError(f"the recipe {recipe.name!r} has no setting {missing!r}", hint="see `capsid recipes show`")
    found = (*given, *own)
    if not found:
        raise ConfigError(f"the recipe {recipe.name!r} has nothing to tune", hint="name a setting with --range")
    return tuple(Range(tuple(p for p in r.paths if has(recipe, p)), r.low, r.high, r.log, r.whole) for r in found)


def has(recipe: Recipe, path: str) -> bool:
    """Whether a recipe has a setting at a dotted path."""
    part: Any = recipe
    for name in path.split("."):
        if isinstance(part, tuple):
            part = part[int(name)] if name.isdigit() and int(name) < len(part) else None
        else:
            part = getattr(part, name, None)
        if part is None:
            return False
    return True
