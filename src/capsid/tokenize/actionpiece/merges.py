"""Learns which tokens to merge inside items and across neighbouring items, by weighted counts (ActionPiece, Hou et al.
2025, arXiv 2502.13581, section 3.2.1).

Merges are learnt once, from training sequences, and apply to any id and any history, including those of new items.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from capsid.base.run_options import CheckpointFile
from capsid.data.item_table import ItemTable
from capsid.errors import ConfigError, NotFittedError
from capsid.ids.piece_table import PieceTable
from capsid.ids.semantic_ids import SemanticIds
from capsid.progress import Progress, silent
from capsid.settings import check_settings, setting
from capsid.tokenize.actionpiece.chains import Chains
from capsid.tokenize.actionpiece.counting import Counts

# Merges between two progress updates.
TOLD_EVERY = 100


@dataclass(kw_only=True)
class Pieces:
    """The heaviest pair of tokens is merged, again and again; weights are exact after every merge."""

    kind: ClassVar[str] = "pieces"
    size: int = setting(
        6_912, "How many merges are learnt, at most; with 4 x 256 codes and 256 suffixes, 8,192 tokens in all.", least=0
    )
    min_weight: float = setting(
        1.0, "A pair is merged if it is expected at least this often in randomly ordered sequences.", above=0
    )

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def table_(self) -> PieceTable:
        """The merges."""
        if not hasattr(self, "pairs_"):
            raise NotFittedError("the merges are not fitted", hint="call fit first")
        pairs = [(int(a), int(b)) for a, b in self.pairs_]
        return PieceTable.of_pairs(self.first_, pairs, self.weights_.tolist())

    def shifted(self, bias: float) -> Pieces:
        """There is no gate to shift."""
        raise ConfigError("merges=pieces has no gate", hint="set merges=semantic-bpe")

    def fit(
        self,
        ids: SemanticIds,
        table: ItemTable,
        *,
        centres_VD: np.ndarray | None = None,
        seed: int = 0,
        progress: Progress = silent,
        checkpoint: CheckpointFile | None = None,
    ) -> Pieces:
        """Count pairs in the table's training sequences. It takes seconds to a minute, so there is no checkpoint."""
        self.first_ = ids.layout.plain.vocabulary
        self.counts_ = np.bincount(table.sequences.values, minlength=len(ids)).astype(np.int64)
        counts = Counts(Chains(ids.unmerged, table.sequences, self.first_, self.size))
        learnt = []
        for number in range(self.size):
            found = counts.merge_heaviest(self.first_ + number, self.min_weight)
            if found is None:
                break
            learnt.append(found)
            if number % TOLD_EVERY == 0:
                progress.update(f"merges: {number:,}/{self.size:,}, heaviest pair {found.weight:,.1f}")
        self.pairs_ = np.array([one.pair for one in learnt], dtype=np.int64).reshape(-1, 2)
        self.weights_ = np.array([one.weight for one in learnt], dtype=np.float64)
        last = f", the last of weight {self.weights_[-1]:,.1f}" if learnt else ""
        progress.line(f"merges: {len(learnt):,} pairs of tokens inside items and across neighbours{last}")
        return self

    def state(self) -> dict[str, np.ndarray]:
        """The pairs in order, their weights, and each item's training count."""
        self.table_  # noqa: B018  (raises if not fitted)
        return {
            "first": np.array(self.first_),
            "pairs": self.pairs_,
            "weights": self.weights_,
            "counts": self.counts_,
        }

    def load_state(self, state: dict[str, np.ndarray]) -> Pieces:
        """Restore the saved arrays."""
        self.first_, self.counts_ = int(state["first"]), state["counts"]
        self.pairs_, self.weights_ = state["pairs"], state["weights"]
        return self
