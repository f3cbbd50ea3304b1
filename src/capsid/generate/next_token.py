"""Cross-entropy of the next token, over the whole vocabulary or over the tokens that can follow in the trie.

Over the children of a node, the losses of an item's tokens sum to minus the log of the item's probability, and rows
below the root score only the children of their own node. If items have two ids, the losses of both are added.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from capsid.blocks.children_cross_entropy import ChildEdges, children_cross_entropy
from capsid.blocks.cross_entropy import Added, linear_cross_entropy
from capsid.errors import ConfigError
from capsid.generate.network import GeneratorNetwork, Predictions
from capsid.generate.terms import BoundTerm, Prepared, Step, TermContext
from capsid.ids.trie import ROOT, Trie
from capsid.ragged import Ragged
from capsid.settings import check_settings, setting


@dataclass(kw_only=True, frozen=True)
class NextToken:
    """Cross-entropy of the next token; logits divided by `temperature` (LETTER, arXiv 2405.07314, Eq. 9)."""

    kind: ClassVar[str] = "next-token"
    weight: float = setting(1.0, "Weight of this term in the sum of all terms.", least=0)
    label_smoothing: float = setting(
        0.0, "Share of the target's probability that is spread evenly over all candidates.", least=0, below=1
    )
    temperature: float = setting(1.0, "Logits are divided by this before the softmax.", above=0)

    def __post_init__(self) -> None:
        check_settings(self)

    def bind(self, context: TermContext) -> BoundTerm:
        """Normalised as the recipe says."""
        if context.over == "children":
            return OverChildren(self, context.trie, context.second)
        if context.second is not None:
            raise ConfigError("two ids per item need over=children: each has its own trie", hint="set over=children")
        return OverVocabulary(self)


class OverVocabulary(BoundTerm):
    """Every token competes with all others."""

    def __init__(self, settings: NextToken) -> None:
        super().__init__(settings.weight)
        self.settings = settings

    def loss(self, step: Step, prepared: Prepared) -> Tensor:
        """Mean over predicted tokens."""
        rows_NS, added = _cooled(step.predictions, step.network, self.settings.temperature)
        return linear_cross_entropy(
            rows_NS,
            step.predictions.vectors.score_VS,
            step.predictions.targets_N,
            label_smoothing=self.settings.label_smoothing,
            added=added,
        )


class OverChildren(BoundTerm):
    """Every token competes with its siblings in the trie of its id."""

    def __init__(self, settings: NextToken, trie: Trie, second: Trie | None = None) -> None:
        super().__init__(settings.weight)
        self._first = _Siblings(settings, trie)
        self._second = None if second is None else _Siblings(settings, second)

    def loss(self, step: Step, prepared: Prepared) -> Tensor:
        """Mean over predicted tokens; a token without siblings is certain and contributes 0.

        The losses of second ids are divided by the number of the first ids' tokens too, so that an item counts as much
        in one id as in the other, whatever their lengths.
        """
        found = step.predictions
        total = self._first.loss(found, step.network)
        if self._second is not None and found.second is not None:
            total = total + self._second.loss(found.second, step.network)
        return total / len(found.targets.values)


class _Siblings:
    """The loss of the ids of one trie."""

    def __init__(self, settings: NextToken, trie: Trie) -> None:
        self.settings, self.trie = settings, trie
        self.root_C = torch.as_tensor(trie.children(np.array([ROOT])).token)

    def loss(self, predictions: Predictions, network: GeneratorNetwork) -> Tensor:
        """The sum over predicted tokens."""
        rows = _cooled(predictions, network, self.settings.temperature)
        nodes_N = parent_nodes(self.trie, predictions.targets)
        at_root_N = nodes_N == ROOT
        root = self._at_root(predictions, *rows, np.flatnonzero(at_root_N))
        return root + self._below(predictions, *rows, np.flatnonzero(~at_root_N & (self._fan(nodes_N) > 1)), nodes_N)

    def _fan(self, nodes: np.ndarray) -> np.ndarray:
        return self.trie.first_child[nodes + 1] - self.trie.first_child[nodes]

    def _at_root(self, found: Predictions, rows_NS: Tensor, added: Added | None, chosen: np.ndarray) -> Tensor:
        """The sum over first tokens: one dense product with the tokens that begin an id."""
        if not len(chosen):
            return torch.zeros(())
        target_R = torch.searchsorted(self.root_C, found.targets_N[torch.as_tensor(chosen)])
        if added is not None:
            number_E, inside_E = _renumbered(added, chosen)
            tokens_E = torch.searchsorted(self.root_C, added.tokens_E[inside_E])
            added = Added(number_E[inside_E], tokens_E, added.values_E[inside_E])
        mean = linear_cross_entropy(
            rows_NS[torch.as_tensor(chosen)],
            found.vectors.score_VS[self.root_C],
            target_R,
            label_smoothing=self.settings.label_smoothing,
            added=added,
        )
        return mean * len(chosen)

    def _below(
        self, found: Predictions, rows_NS: Tensor, added: Added | None, chosen: np.ndarray, nodes_N: np.ndarray
    ) -> Tensor:
        """The sum over later tokens, each against the children of its own node."""
        if not len(chosen):
            return torch.zeros(())
        children = self.trie.children(nodes_N[chosen])
        stride = len(found.vectors.score_VS)
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
            found.vectors.score_VS,
            edges,
            values_A,
            label_smoothing=self.settings.label_smoothing,
        )


def parent_nodes(trie: Trie, targets: Ragged) -> np.ndarray:
    """The parent node of every target token. Shape: (tokens,)."""
    out = np.full(len(targets.values), ROOT, dtype=np.int64)
    starts, lengths = targets.offsets[:-1], targets.lengths
    for depth in range(1, int(lengths.max()) if len(lengths) else 0):
        place = starts[lengths > depth] + depth
        out[place] = trie.walk(out[place - 1], targets.values[place - 1])
    return out


def _cooled(found: Predictions, network: GeneratorNetwork, temperature: float) -> tuple[Tensor, Added | None]:
    """Hidden rows and added scores, both divided by the temperature."""
    rows_NS, added = network.norm(found.hidden_ND), found.added
    if temperature != 1.0:
        rows_NS = rows_NS / temperature
        added = added and replace(added, values_E=added.values_E / temperature)
    return rows_NS, added


def _renumbered(added: Added, chosen: np.ndarray) -> tuple[Tensor, Tensor]:
    """For every entry: the number of its row among the chosen ones, and whether its row is one of them."""
    rows = torch.as_tensor(chosen)
    number_E = torch.searchsorted(rows, added.rows_E).clamp_max(len(rows) - 1)
    return number_E, rows[number_E] == added.rows_E
