"""The paper's numbers, read from `paper.toml`. They are shown beside ours, always marked, and never computed with."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "paper.toml"
DATASETS = {"amazon-beauty": "beauty", "amazon-sports": "sports", "amazon-toys": "toys"}
METRICS = ("recall@5", "recall@10", "ndcg@5", "ndcg@10")


@cache
def paper() -> dict[str, Any]:
    """All of it, by table."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def main_value(method: str, dataset: str, metric: str) -> float | None:
    """A number of the paper's main table; None where it has none."""
    row = paper()["main"].get(method, {}).get(DATASETS.get(dataset, ""))
    return row[METRICS.index(metric)] if row is not None and metric in METRICS else None


def number(table: str, row: str, place: int | None = None) -> float | None:
    """A number of another table: the row itself, or one of its places."""
    found = paper()[table].get(row)
    if found is None or place is None:
        return found if isinstance(found, float) else None
    return float(found[place]) if place < len(found) else None
