"""Configurations that release 0.1 wrote, as this release writes them. Knows plain JSON values only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Settings of a generator that are a part of the recipe today.
_MEMORY = ("memory", "memory_after", "neighbours")


def recipe_today(data: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe of release 0.1 with the fields of today; one of today stays as it is."""
    out = parts_today(data)
    generator = out.get("generator")
    if isinstance(generator, Mapping) and "memory" in generator:
        kept = {name: value for name, value in generator.items() if name not in _MEMORY}
        last, neighbours = generator["memory"], generator.get("neighbours", 0)
        out["generator"] = kept
        out["memory"] = {"kind": "memory", "last": last, "neighbours": neighbours} if last else None
    decoder = out.get("decoder")
    if isinstance(decoder, Mapping) and "weight" in decoder:
        rest = {name: value for name, value in decoder.items() if name != "weight"}
        out["decoder"] = {**rest, "weights": [decoder["weight"], 1 - decoder["weight"]]}
    return out


def parts_today(data: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of an item tokenizer: items had one id, or a second one."""
    out = dict(data)
    if "second" in out:
        second = out.pop("second")
        out["other_ids"] = [] if second is None else [{**second, "kind": "id-system"}]
    return out
