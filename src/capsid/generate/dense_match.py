"""A loss term that matches the vector predicted after an id with the vector of the item itself.

Beside next-token prediction, the row after an item's last token has to find the item's vector among those of the batch:
cross-entropy of cosines over a temperature (COBRA, Yang et al. 2025, arXiv 2503.02453). The same item vectors are
matched and read, and they are trained too. Shapes as in `capsid.generate.dense_items`; U unique items of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from capsid.base.randomness import child_seed
from capsid.errors import ConfigError, nearest
from capsid.generate.backbone import Backbone
from capsid.generate.dense_items import DenseItems, DenseNetwork
from capsid.generate.terms import NOTHING, BoundTerm, Prepared, Step, TermContext
from capsid.ids.reading import Lesson
from capsid.settings import Checked, setting


@dataclass(kw_only=True, frozen=True)
class DenseMatch(Checked):
    """Item vectors beside ids: read with the history, expected after an id."""

    kind: ClassVar[str] = "dense"
    weight: float = setting(1.0, "Weight of this term in the sum of all terms.", least=0)
    block: str = setting("item", "Which of the encoder's vectors the items' vectors are made from.", count=(1, None))
    hidden: int = setting(256, "Hidden units of the network that makes the items' vectors.", least=1)
    dim: int = setting(64, "Width of the items' vectors.", least=1)
    temperature: float = setting(0.1, "Cosines are divided by this before the softmax.", above=0)
    reads: bool = setting(True, "Whether the vectors of a history's items are read beside their tokens.")

    def bind(self, context: TermContext) -> BoundTerm:
        return BoundMatch(self, context)

    def network(self, inputs: int, width: int) -> DenseNetwork:
        """A network without weights yet, for encoder's vectors and hidden rows of these widths."""
        return DenseNetwork(inputs, self.hidden, self.dim, width, reads=self.reads)


@dataclass(frozen=True, eq=False)
class _Vectors(Prepared):
    """Inputs, the unique items of a batch in order, and their vectors."""

    unique_U: np.ndarray | None = None
    vectors_UC: Tensor | None = None


class BoundMatch(BoundTerm):
    """The vectors' network at work."""

    carries = True

    def __init__(self, settings: DenseMatch, context: TermContext) -> None:
        super().__init__(settings.weight)
        self.temperature = settings.temperature
        blocks = {} if context.tokenizer is None else context.tokenizer.blocks_
        if settings.block not in blocks:
            raise ConfigError(
                f"the dense term needs item vectors {settings.block!r}, which the recipe's encoder does not give",
                hint=nearest(settings.block, blocks),
            )
        # Looked at, not owned: the encoder's vectors must not enter checkpoints.
        self._x_NI = blocks[settings.block]
        self.network = settings.network(self._x_NI.shape[1], context.width)
        self.network.reset(self._x_NI, torch.Generator().manual_seed(child_seed(context.seed, "dense")))

    @property
    def closes(self) -> bool:
        """Rows after last tokens are asked for wherever they are matched."""
        return self.weight > 0

    def prepare(self, lesson: Lesson, network: Backbone) -> Prepared:
        """The vectors of the batch's items, and what they add to what is read."""
        if not self.closes and self.network.enter is None:
            return NOTHING
        unique_U, which_E = np.unique(lesson.batch.items.values, return_inverse=True)
        vectors_UC = self.network.items(torch.as_tensor(np.array(self._x_NI[unique_U], dtype=np.float32)))
        inputs_RD = self.network.inputs(lesson.batch, vectors_UC[torch.as_tensor(which_E)])
        return _Vectors(inputs_RD=inputs_RD, unique_U=unique_U, vectors_UC=vectors_UC)

    def loss(self, step: Step, prepared: Prepared) -> Tensor:
        """Mean over predicted items: each against the batch's items, without those that its user takes later."""
        rows_MD = step.predictions.ends_MD
        if rows_MD is None:
            return torch.zeros(())
        assert isinstance(prepared, _Vectors)
        assert prepared.unique_U is not None
        assert prepared.vectors_UC is not None
        own_M = np.searchsorted(prepared.unique_U, step.lesson.item_M)
        scores_MU = self.network.expected(rows_MD) @ prepared.vectors_UC.T / self.temperature
        scores_MU = scores_MU.masked_fill(torch.as_tensor(_later(step.lesson, prepared.unique_U, own_M)), -torch.inf)
        return F.cross_entropy(scores_MU, torch.as_tensor(own_M))

    def dense(self) -> DenseItems:
        """The vectors of the whole catalogue, as the weights are now."""
        return DenseItems.of(self.network, self._x_NI)

    def continue_from(self, dense: DenseItems) -> None:
        """Begin with the network of an earlier fit."""
        self.network.load_state_dict(dense.network.state_dict())


def _later(lesson: Lesson, unique_U: np.ndarray, own_M: np.ndarray) -> np.ndarray:
    """For each predicted item, which other items its user takes after it: no wrong answers. Shape: (M, U)."""
    items = lesson.batch.items
    latest_BU = np.full((len(items), len(unique_U)), -1, dtype=np.int64)
    np.maximum.at(latest_BU, (items.row_numbers, np.searchsorted(unique_U, items.values)), items.positions)
    later_MU = latest_BU[lesson.row_M] > lesson.before_M[:, None]
    later_MU[np.arange(len(own_M)), own_M] = False
    return later_MU
