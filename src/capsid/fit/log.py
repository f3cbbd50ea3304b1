"""The log of a fit: one entry for each phase, and one more for each side that a joint term trains in it.

Parts of a phase have no entries of their own: a phase that gives items new ids forty times would have eighty.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from capsid.recipe import Stretch
from capsid.train.loop import TrainingResult


def entry_of(stretch: Stretch, result: TrainingResult) -> dict[str, Any]:
    """A stretch as an entry of its own, in plain values."""
    told = ("steps", "best_step", "seconds", "tokens", "averaged", "tokens_per_second")
    return {
        "phase": stretch.name,
        "trains": "tokenizer" if stretch.freezes else "generator",
        "parts": 1,
        "from_step": stretch.steps.start,
        **{name: getattr(result, name) for name in told},
        # Without validation the metric is minus infinity, which JSON cannot hold.
        "best_metric": result.best_metric if result.curve else None,
        "sequences": result.steps * stretch.training.batch_size,
        "curve": [dataclasses.asdict(p) for p in result.curve],
    }


class PhaseLog:
    """The entries of one phase: stretches of one name are one entry, with steps counted from the phase's first."""

    def __init__(self) -> None:
        self._by_name: dict[str, dict[str, Any]] = {}
        self._new_codes: list[int] = []

    @property
    def entries(self) -> list[dict[str, Any]]:
        """In order of their first stretches, the rest of the phase last."""
        found = list(self._by_name.values())
        if self._new_codes:
            found[0] = {**found[0], "new_codes": self._new_codes}
        return found

    def add(self, entry: dict[str, Any]) -> None:
        """Add a finished stretch. The best step is that of the last stretch: ids of earlier ones may be gone."""
        before = self._by_name.get(entry["phase"])
        if before is not None:
            shifted = [{**point, "seconds": before["seconds"] + point["seconds"]} for point in entry["curve"]]
            entry = {**entry, "from_step": before["from_step"]}
            summed = {n: before[n] + entry[n] for n in ("parts", "steps", "seconds", "tokens", "sequences")}
            entry = {**entry, **summed, "curve": [*before["curve"], *shifted]}
            entry["tokens_per_second"] = entry["tokens"] / entry["seconds"] if entry["seconds"] else 0.0
        self._by_name[entry["phase"]] = entry

    def settled(self, changed: int) -> None:
        """So many items got new codes."""
        self._new_codes.append(changed)
