"""Cross-entropy of the next token, over the whole vocabulary or over the tokens that can follow in the trie.

Over the children of a node, the losses of an item's tokens sum to minus the log of the item's probability, and rows
below the root score only the children of their own node. If items have several ids, the losses of all are added.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from capsid.base.blocks.cross_entropy import (
    Added,
    ChildEdges,
    GroupTargets,
    children_cross_entropy,
    group_cross_entropy,
    linear_cross_entropy,
)
from capsid.errors import ConfigError
from capsid.generate.backbone import Predictions
from capsid.generate.terms import BoundTerm, Prepared, Step, TermContext
from capsid.ids.layout import TokenLayout
from capsid.ids.mixtures import Mixtures, first_codes
from capsid.ids.trie import ROOT, Trie
from capsid.ragged import Ragged
from capsid.settings import Checked, setting


@dataclass(kw_only=True, frozen=True)
class NextToken(Checked):
    """Cross-entropy of the next token; logits divided by `temperature` (LETTER, arXiv 2405.07314, Eq. 9)."""

    kind: ClassVar[str] = "next-token"
    weight: float = setting(1.0, "Weight of this term in the sum of all terms.", least=0)
    label_smoothing: float = setting(
        0.0, "Share of the target's probability that is spread evenly over all candidates.", least=0, below=1
    )
    temperature: float = setting(1.0, "Logits are divided by this before the softmax.", above=0)
    soft_target: float = setting(
        0.0, "Share of first tokens' loss with the mixture of an item's codes as target.", least=0, most=1
    )

    def bind(self, context: TermContext) -> BoundTerm:
        if context.over == "children":
            return OverChildren(self, context.tries, SoftTarget.of(context) if self.soft_target else None)
        return OverVocabulary(self)


class OverVocabulary(BoundTerm):
    """Every token competes with all others."""

    def __init__(self, settings: NextToken) -> None:
        super().__init__(settings.weight)
        self.settings = settings

    def loss(self, step: Step, prepared: Prepared) -> Tensor:
        """Mean over predicted tokens."""
        rows_NS, added = _cooled(step.predictions, self.settings.temperature)
        return linear_cross_entropy(
            rows_NS,
            step.predictions.score_VS,
            step.predictions.targets_N,
            label_smoothing=self.settings.label_smoothing,
            added=added,
        )


class OverChildren(BoundTerm):
    """Every token competes with its siblings in the trie of its id."""

    def __init__(self, settings: NextToken, tries: tuple[Trie, ...], soft: SoftTarget | None = None) -> None:
        super().__init__(settings.weight)
        self._siblings = [_Siblings(settings, trie, None if number else soft) for number, trie in enumerate(tries)]

    def loss(self, step: Step, prepared: Prepared) -> Tensor:
        """Mean over predicted tokens; a token without siblings is certain and contributes 0. The losses of other ids
        are divided by the number of the first ids' tokens too, so that an item counts as much in one id as in the
        other, whatever their lengths."""
        found, item_M = step.predictions, step.lesson.item_M
        first, *others = (
            own.loss(predictions, item_M) for own, predictions in zip(self._siblings, (found, *found.others))
        )
        return sum(others, first) / len(found.targets.values)


class _Siblings:
    """The loss of the ids of one trie."""

    def __init__(self, settings: NextToken, trie: Trie, soft: SoftTarget | None = None) -> None:
        self.settings, self.trie, self.soft = settings, trie, soft
        self.root_C = torch.as_tensor(trie.children(np.array([ROOT])).token)

    def loss(self, predictions: Predictions, item_M: np.ndarray) -> Tensor:
        """The sum over predicted tokens."""
        rows = _cooled(predictions, self.settings.temperature)
        nodes_N = parent_nodes(self.trie, predictions.targets)
        at_root_N = nodes_N == ROOT
        root = self._at_root(predictions, *rows, np.flatnonzero(at_root_N), item_M)
        return root + self._below(predictions, *rows, np.flatnonzero(~at_root_N & (self._fan(nodes_N) > 1)), nodes_N)

    def _fan(self, nodes: np.ndarray) -> np.ndarray:
        return self.trie.first_child[nodes + 1] - self.trie.first_child[nodes]

    def _at_root(
        self, found: Predictions, rows_NS: Tensor, added: Added | None, chosen: np.ndarray, item_M: np.ndarray
    ) -> Tensor:
        """The sum over first tokens, one of every item: one dense product with the tokens that begin an id."""
        if not len(chosen):
            return torch.zeros(())
        target_R = torch.searchsorted(self.root_C, found.targets_N[torch.as_tensor(chosen)])
        if added is not None:
            number_E, inside_E = _renumbered(added, chosen)
            tokens_E = torch.searchsorted(self.root_C, added.tokens_E[inside_E])
            added = Added(number_E[inside_E], tokens_E, added.values_E[inside_E])
        rows_RS, vectors_CS = rows_NS[torch.as_tensor(chosen)], found.score_VS[self.root_C]
        smoothing, share = self.settings.label_smoothing, self.settings.soft_target
        hard = linear_cross_entropy(rows_RS, vectors_CS, target_R, label_smoothing=smoothing, added=added) * len(chosen)
        if self.soft is None:
            return hard
        targets = self.soft.targets(self.root_C.numpy(), item_M, found.targets.values[chosen])
        return (1 - share) * hard + share * group_cross_entropy(rows_RS, vectors_CS, targets, added=added)

    def _below(
        self, found: Predictions, rows_NS: Tensor, added: Added | None, chosen: np.ndarray, nodes_N: np.ndarray
    ) -> Tensor:
        """The sum over later tokens, each against the children of its own node."""
        if not len(chosen):
            return torch.zeros(())
        children = self.trie.children(nodes_N[chosen])
        stride = len(found.score_VS)
        # Rows are in order and children are sorted by token, so the keys row * vocabulary + token are sorted.
        key_E = torch.as_tensor(children.parent * stride + children.token)
        target_R = found.targets_N[torch.as_tensor(chosen)]
        own_R = torch.searchsorted(key_E, torch.arange(len(chosen)) * stride + target_R)
        plus_A, values_A = torch.zeros(0, dtype=torch.int64), torch.zeros(0)
        if added is not None:
            number_A, inside_A = _renumbered(added, chosen)
            plus_A = torch.searchsorted(key_E, number_A[inside_A] * stride + added.tokens_E[inside_A])
            values_A = added.values_E[inside_A]
        edges = ChildEdges(torch.as_tensor(children.parent), torch.as_tensor(children.token), own_R, plus_A)
        return children_cross_entropy(
            rows_NS[torch.as_tensor(chosen)],
            found.score_VS,
            edges,
            values_A,
            label_smoothing=self.settings.label_smoothing,
        )


@dataclass(frozen=True, eq=False)
class SoftTarget:
    """The mixture of an item's strongest codes as the target of its first token. The probability of a code is that of
    all tokens that begin with it, merged ones included. A code that begins no id gets no share of the target."""

    layout: TokenLayout
    mixtures: Mixtures

    @classmethod
    def of(cls, context: TermContext) -> Self:
        """From the mixtures that the items of a history are read as."""
        if context.ids.mixtures is None:
            raise ConfigError(
                "objective.soft_target needs the weights of items' codes, which are read with generator.soft_input",
                hint="set generator.soft_input=8",
            )
        return cls(context.ids.layout, context.ids.mixtures)

    def targets(self, root_C: np.ndarray, item_M: np.ndarray, first_M: np.ndarray) -> GroupTargets:
        """Targets for items whose ids begin with the tokens `first_M`, out of those that begin any id."""
        codes, group_C = np.unique(first_codes(self.layout, root_C), return_inverse=True)
        tokens, shares_E = self.mixtures.first_shares(self.layout, item_M, first_M)
        group_E = np.minimum(np.searchsorted(codes, tokens.values), len(codes) - 1)
        there_E = codes[group_E] == tokens.values
        row_E, group_E, shares_E = tokens.row_numbers[there_E], group_E[there_E], shares_E[there_E]
        shares_E = shares_E / np.bincount(row_E, weights=shares_E, minlength=len(tokens))[row_E]
        arrays = (group_C, row_E, group_E, shares_E.astype(np.float32))
        return GroupTargets(*(torch.as_tensor(array) for array in arrays))


def parent_nodes(trie: Trie, targets: Ragged) -> np.ndarray:
    """The parent node of every target token. Shape: (tokens,)."""
    out = np.full(len(targets.values), ROOT, dtype=np.int64)
    starts, lengths = targets.offsets[:-1], targets.lengths
    for depth in range(1, int(lengths.max()) if len(lengths) else 0):
        place = starts[lengths > depth] + depth
        out[place] = trie.walk(out[place - 1], targets.values[place - 1])
    return out


def _cooled(found: Predictions, temperature: float) -> tuple[Tensor, Added | None]:
    """Hidden rows and added scores, both divided by the temperature."""
    rows_NS, added = found.rows_NS, found.added
    if temperature != 1.0:
        rows_NS = rows_NS / temperature
        added = added and replace(added, values_E=added.values_E / temperature)
    return rows_NS, added


def _renumbered(added: Added, chosen: np.ndarray) -> tuple[Tensor, Tensor]:
    """For every entry: the number of its row among the chosen ones, and whether its row is one of them."""
    rows = torch.as_tensor(chosen)
    number_E = torch.searchsorted(rows, added.rows_E).clamp_max(len(rows) - 1)
    return number_E, rows[number_E] == added.rows_E
