"""All codes of the next item at once (RPG, Hou et al. 2025, arXiv 2506.05781): no code waits for the one before it.

A timeline reads the history; from its last hidden row one head for each depth predicts that depth's code. So the
probability of an item is the product over depths, whatever their order, and a search that fixes an order is not needed:
`capsid.decode.exact` adds the logs of all items. Codes of one depth compete with each other only. Knows tokens only.
Shapes as in `capsid.generate.timeline`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsid.errors import ConfigError
from capsid.generate.backbone import Predictions, refuse_closing
from capsid.generate.generator import ItemwiseGenerator
from capsid.generate.network import State
from capsid.generate.shape import TokenSpace, TokenVectors, TransformerShape
from capsid.generate.terms import BoundTerm, Prepared, Step, TermContext
from capsid.generate.timeline import TimelineTransformer
from capsid.ids.layout import TokenLayout
from capsid.ids.reading import Lesson, ReadableIds, TokenBatch

# Far below every score: what cannot stand at a depth has no probability there.
IMPOSSIBLE = -1e9


@dataclass(frozen=True)
class ParallelState(State):
    """`read_U1D` are the timeline's last hidden rows."""

    read_U1D: Tensor | None = None


class ParallelTransformer(TimelineTransformer):
    """A timeline with one head for each depth instead of a Transformer over depth."""

    closes: ClassVar[bool] = False
    depth_of_V: Tensor

    def __init__(self, shape: TransformerShape, space: TokenSpace, layout: TokenLayout, *, reads: str) -> None:
        super().__init__(shape, space, depth_layers=0, reads=reads, repeats=False)
        self.heads = nn.ModuleList(nn.Linear(shape.width, shape.width) for _ in range(layout.depths))
        self.register_buffer("depth_of_V", torch.as_tensor(layout.depth_of), persistent=False)

    def _next(
        self,
        vectors: TokenVectors,
        read_BPD: Tensor,
        lesson: Lesson,
        forced_ND: Tensor | None = None,
        closing: bool = False,
    ) -> Predictions:
        """Hidden rows for every code of every item of the lesson: none has read another."""
        refuse_closing(closing)
        last_M = torch.as_tensor(lesson.row_M * read_BPD.shape[1] + lesson.position_M - 1)
        starts_MD = read_BPD.flatten(0, 1)[last_M]
        tokens = lesson.tokens
        hidden_ND = starts_MD.new_empty(len(tokens.values), self.shape.width)
        item_N, depth_N = torch.as_tensor(tokens.row_numbers), torch.as_tensor(tokens.positions)
        for depth in range(len(self.heads)):
            here = torch.nonzero(depth_N == depth)[:, 0]
            hidden_ND = hidden_ND.index_copy(0, here, self._head(depth, starts_MD[item_N[here]]))
        return self._predicted(lesson, hidden_ND, vectors, None, starts_MD)

    def start(self, histories: TokenBatch, inputs_RD: Tensor | None = None) -> tuple[State, Tensor]:
        """Read histories once; every depth is predicted from their last rows."""
        state, read_U1D = super().start(histories, inputs_RD)
        common = {name: getattr(state, name) for name in State.__dataclass_fields__}
        return ParallelState(**common, read_U1D=read_U1D), self._head(0, read_U1D)

    def step(self, state: State, parents_UW: Tensor, tokens_UW: Tensor) -> tuple[State, Tensor]:
        """The rows of the next depth, the same for all beams of a history."""
        assert isinstance(state, ParallelState)
        assert state.read_U1D is not None
        depth = state.depth + 1
        rows_U1D = self._head(min(depth, len(self.heads) - 1), state.read_U1D)
        return replace(state, depth=depth), rows_U1D.expand(-1, tokens_UW.shape[1], -1)

    def scores(self, state: State, rows_UWD: Tensor, row_R: Tensor | None = None) -> Tensor:
        """Scores of the codes of the state's depth; all others are impossible."""
        found = super().scores(state, rows_UWD, row_R)
        return found.masked_fill(self.depth_of_V != state.depth, IMPOSSIBLE)

    def _head(self, depth: int, rows: Tensor) -> Tensor:
        moved: Tensor = F.silu(self.heads[depth](rows))
        return rows + moved


@dataclass(kw_only=True)
class ParallelGenerator(ItemwiseGenerator):
    """Predicts the codes of the next item independently of each other: see `capsid.generate.parallel`."""

    kind: ClassVar[str] = "parallel"

    def make(self, ids: ReadableIds) -> ParallelTransformer:
        if len(ids.layout.merges):
            raise ConfigError("the parallel generator needs one code per depth", hint="set merges=null")
        return ParallelTransformer(self, TokenSpace.of(ids, self.history), ids.layout, reads=self.reads)


@dataclass(kw_only=True, frozen=True)
class AllCodes:
    """The sum of the cross-entropies of all codes of an item, each among the codes of its depth (RPG, Eq. 4)."""

    kind: ClassVar[str] = "all-codes"
    weight: ClassVar[float] = 1.0

    def bind(self, context: TermContext) -> BoundTerm:
        return _AllCodes(self.weight, context.ids.layout)


class _AllCodes(BoundTerm):
    def __init__(self, weight: float, layout: TokenLayout) -> None:
        super().__init__(weight)
        ends = [*layout.bases.tolist(), layout.end]
        self.spans = [(ends[depth], ends[depth + 1]) for depth in range(layout.depths)]

    def loss(self, step: Step, prepared: Prepared) -> Tensor:
        found = step.predictions
        rows_NS, targets_N = found.rows_NS, found.targets_N
        depth_N = torch.as_tensor(found.targets.positions)
        total = torch.zeros(())
        for depth, (begin, end) in enumerate(self.spans):
            here = torch.nonzero(depth_N == depth)[:, 0]
            scores = F.linear(rows_NS[here], found.score_VS[begin:end])
            total = total + F.cross_entropy(scores, targets_N[here] - begin, reduction="sum")
        return total / max(len(targets_N), 1)
