"""Configurations that release 0.1 wrote, as this release writes them. Knows plain JSON values only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def recipe_today(data: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe of release 0.1 with the fields of today; one of today stays as it is."""
    out = parts_today(data)
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
