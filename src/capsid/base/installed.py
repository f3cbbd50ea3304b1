"""Parts and recipes of other installed packages, found through the entry points that those packages declare.

A stored recipe names a kind. Only the installed packages decide which class that is: a file never names code. A part
or recipe is imported only when it is requested by name.
"""

from __future__ import annotations

import dataclasses
from importlib.metadata import entry_points

from capsid.errors import ConfigError

PARTS = "capsid.parts"
RECIPES = "capsid.recipes"


def installed_names(group: str) -> list[str]:
    """Sorted names that installed packages declare in a group."""
    return sorted(entry_points(group=group).names)


def installed_part(kind: str) -> type | None:
    """The class of that kind; None if no package declares it."""
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
