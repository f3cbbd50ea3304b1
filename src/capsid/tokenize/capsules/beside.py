"""The merge gate in stage 1: it learns beside the capsules (CapsID, arXiv 2605.05096, sections 3.3 and 3.4).

Pairs, frequencies and meanings are recounted in every epoch from the codes that the one before it has seen, which costs
nothing, and lambda_b L_BPE is added to the tokenizer's loss. No gradient passes between the two: pairs are hard. Knows
no capsules.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from capsid.base.run_options import CheckpointFile
from capsid.data.item_table import ItemTable
from capsid.errors import ConfigError
from capsid.ids.collisions import Bucket
from capsid.ids.layout import ABSENT
from capsid.ids.semantic_ids import SemanticIds
from capsid.progress import Progress, silent
from capsid.ragged import Ragged
from capsid.tokenize.base import FitEncodes
from capsid.tokenize.capsules.gate import Gate, GateInputs, gate_logits, gate_loss
from capsid.tokenize.capsules.pairs import Candidates
from capsid.tokenize.capsules.semantic_bpe import Pass, SemanticBPE
from capsid.tokenize.training import weight_source


def fit_beside(
    merges: SemanticBPE,
    tokenizer: object,
    table: ItemTable,
    *,
    seed: int,
    progress: Progress,
    checkpoint: CheckpointFile | None,
) -> tuple[GateBeside, tuple[Ragged, Ragged | None]]:
    """Fit a tokenizer that can train the gate beside itself; the gate, and the codes and confidences of the items."""
    training: Any = getattr(tokenizer, "training", None)
    if not isinstance(tokenizer, FitEncodes) or not training.steps:
        raise ConfigError(
            f"merges.beside=true needs a tokenizer that trains capsules, got {getattr(tokenizer, 'kind', tokenizer)}",
            hint="set merges.beside=false, or tokenizer=capsules with tokenizer.training.steps above 0",
        )
    gate = GateBeside(merges, table, tokenizer.codebooks, seed)  # type: ignore[attr-defined]
    return gate, tokenizer.fit_encode(table, gate, seed=seed, progress=progress, checkpoint=checkpoint)


class GateBeside(nn.Module):
    """The gate, and all items' codes as the last epoch saw them: pairs follow from these. Those of the present epoch
    are collected meanwhile. Checkpoints hold both, so a resumed run has the same pairs."""

    codes_NL: Tensor
    seen_NL: Tensor

    def __init__(self, merges: SemanticBPE, table: ItemTable, sizes: tuple[int, ...], seed: int) -> None:
        super().__init__()
        self._merges, self._table, self._sizes = merges, table, sizes
        self.gate = Gate(2 * table.vectors().shape[1] + 2, weight_source(seed, "merges"))
        for name in ("codes_NL", "seen_NL"):
            self.register_buffer(name, torch.full((len(table.items), len(sizes)), ABSENT, dtype=torch.int32))
        self._counted: tuple[Pass, Candidates, np.ndarray] | None = None
        self._inputs: GateInputs | None = None

    def see(self, rows_B: np.ndarray, codes_BL: Tensor) -> None:
        """The codes of some items, -1 behind the end of an id."""
        self.seen_NL[torch.as_tensor(rows_B)] = codes_BL.to(self.seen_NL.dtype)

    def recount(self) -> None:
        self.codes_NL.copy_(self.seen_NL)
        self._counted = self._inputs = None

    def loss(self, share: float) -> Tensor:
        """lambda_b L_BPE over a batch of the pairs, after this share of training; 0 without pairs, as in epoch 1."""
        if (self.codes_NL[:, 0] == ABSENT).any():
            return torch.zeros(())
        if self._counted is None:
            self._counted = self._count()
        work, pairs, profiles_VD = self._counted
        if not len(pairs):
            return torch.zeros(())
        if self._inputs is None:
            self._inputs = GateInputs(pairs, profiles_VD)
        rows = torch.randint(len(pairs), (self._merges.training.batch_size,)).numpy()
        target_B = torch.as_tensor(work.teacher(pairs)(share)[rows].astype(np.int64))
        return self._merges.weight * gate_loss(self.gate(self._inputs.rows(rows)), target_B)

    def logits(self, pairs: Candidates, profiles_VD: np.ndarray) -> np.ndarray:
        """Logit of merging every pair."""
        return gate_logits(self.gate, GateInputs(pairs, profiles_VD), self._merges.training.batch_size)

    def _count(self) -> tuple[Pass, Candidates, np.ndarray]:
        codes_NL = self.codes_NL.numpy()
        codes = Ragged.from_dense(codes_NL, (codes_NL != ABSENT).sum(1))
        ids = SemanticIds.assign(self._table.items, codes, self._sizes, Bucket())
        work = Pass(self._merges, 1, ids, self._table, silent)
        return work, *work.counted(None)
