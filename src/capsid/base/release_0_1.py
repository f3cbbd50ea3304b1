"""Configurations that earlier versions wrote, as this one writes them. Knows plain JSON values only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Settings that nobody varied, by kind of part, and the constant that each has become. Files still name them.
RETIRED: Mapping[str, Mapping[str, Any]] = {
    "aligned-tree": {"iterations": 20, "block": "item"},
    "all-codes": {"weight": 1.0},
    "alternating": {"temperature": 0.07},
    "attributes": {"min_items": 2},
    "code-diversity": {"groups": 10, "least": 10, "most": 60},
    "collaborative": {"decay": "harmonic", "smoothing": 0.75, "shift": 1.0, "power": 0.5},
    "collaborative-match": {"block": "behaviour"},
    "dense": {"rate": 1.0},
    "famae": {"layers": 2, "heads": 4, "history": 50, "dropout": 0.1},
    "hashing": {"letters": [3, 4], "buckets": 1 << 15, "words": 2, "salt": 0},
    "joined": {"whiten": False, "ridge": 1.0},
    "mixture": {
        "commitment": 0.25,
        "alignment": 0.1,
        "temperature": 0.07,
        "sparsity": 0.001,
        "closed": 0.6,
        "revive": True,
        "sample": 65_536,
        "block": "item",
    },
    "pieces": {"min_weight": 1.0},
    "product": {"iterations": 25, "restarts": 1, "block": "item"},
    "reassign": {"rounds": 20, "epsilon": 0.003, "iterations": 50},
    "residual-kmeans": {"iterations": 25},
    "routing-adapters": {"merge_weight": 0.2},
    "rq-vae": {"commitment": 0.25, "revive": True, "sample": 65_536},
    "sasrec": {"layers": 2, "history": 50, "dropout": 0.3},
    "semantic-bpe": {"frequency": "log", "hidden": 64, "gumbel": 1.0, "sparsity": 0.01},
    "sinkhorn": {"epsilon": 0.003, "iterations": 50},
    "training": {"beta1": 0.9},
}
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
