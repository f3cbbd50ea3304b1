"""What a store remembers about a user's own plan: its text and the paths of its data. Later, its name is enough.

The text is `plan.toml` in the plan's folder. Paths are in `data.json` in its working folder, which is not for
publishing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from capsid.base.storage.artifacts import read_json, write_bytes, write_json
from capsid.bench.plans import Plan, is_built_in, plan_names, read_plan
from capsid.bench.results import plans_in
from capsid.bench.store import Place
from capsid.data.sources import SOURCES
from capsid.errors import ConfigError, nearest

PLAN = "plan.toml"
DATA = "data.json"


def find_plan(name_or_path: str | Path, store: Path) -> Plan:
    """A built-in plan, a TOML file, or a plan that was run into the store before."""
    name = str(name_or_path)
    if is_built_in(name) or Path(name).is_file():
        return read_plan(name)
    kept = store / name / PLAN
    if "/" in name or not kept.is_file():
        known = [*plan_names(), *plans_in(store)]
        raise ConfigError(f"there is no plan and no file called {name!r}", hint=nearest(name, known))
    return read_plan(kept, name=name)


def remember(place: Place, name_or_path: str | Path, sources: Mapping[str, str]) -> None:
    """Keep the text of a plan's file, and the paths of its data."""
    path = Path(name_or_path)
    if not is_built_in(str(name_or_path)) and path.is_file():
        write_bytes(place.folder / PLAN, path.read_bytes())
    paths = {name: source for name, source in sources.items() if source not in SOURCES}
    if paths:
        write_json(place.works / DATA, {**remembered_sources(place), **paths})


def remembered_sources(place: Place) -> dict[str, str]:
    """Where the datasets of the plan were when it last ran."""
    path = place.works / DATA
    content = read_json(path) if path.is_file() else {}
    return {str(name): str(source) for name, source in content.items()} if isinstance(content, dict) else {}
