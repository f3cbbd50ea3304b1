"""Soft input: the strongest codes of each item by depth, and how they change the embeddings of its tokens.

In a history the embedding of a code is replaced by the weighted mean over the item's strongest codes; predicted items
keep hard codes. Knows codes and tokens, no vectors: a network adds up the embeddings of the tokens named here. NumPy
only. Shapes: N items, L depths, K codes, M items read, R tokens, P
codes of these tokens, E entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from capsid.errors import ConfigError, DataError
from capsid.ids.layout import TokenLayout
from capsid.ragged import Ragged


@dataclass(frozen=True, eq=False)
class Corrections:
    """For every token read, in order: which tokens' vectors to add to its own, and with which weights."""

    tokens: Ragged
    weights_E: np.ndarray

    def followed(self, own: np.ndarray, others: np.ndarray) -> Corrections:
        """The same for items of `own` tokens each, where each item is followed by `others` tokens that stay hard."""
        there = np.tile([True, False], len(own))
        lengths = np.zeros(int(own.sum() + others.sum()), dtype=np.int64)
        lengths[np.repeat(there, np.stack([own, others], 1).ravel())] = self.tokens.lengths
        return Corrections(Ragged.from_lengths(self.tokens.values, lengths), self.weights_E)


@dataclass(frozen=True, eq=False)
class Mixtures:
    """The strongest codes of every item at every depth, strongest first, and their shares, which sum to 1. `sharpness`
    is the power that the tokenizer's weights were raised to: above 1 the strongest counts for more."""

    codes_NLK: np.ndarray
    weights_NLK: np.ndarray
    sharpness: float = 1.0

    @classmethod
    def of(cls, codes_NLK: np.ndarray, weights_NLK: np.ndarray, sharpness: float = 1.0) -> Mixtures:
        """From a tokenizer's weights, which need not sum to 1."""
        if codes_NLK.shape[2] < 1:
            raise ConfigError("a mixture needs at least one code")
        # Relative to the strongest, so that a high power cannot underflow all of them.
        raised = (weights_NLK / weights_NLK[:, :, :1]).astype(np.float64) ** sharpness
        shares = (raised / raised.sum(2, keepdims=True)).astype(np.float32)
        return cls(codes_NLK.astype(np.int32), shares, sharpness)

    def __len__(self) -> int:
        return len(self.codes_NLK)

    @property
    def strongest(self) -> int:
        """How many codes are mixed."""
        return int(self.codes_NLK.shape[2])

    def append(self, more: Mixtures) -> Mixtures:
        """These mixtures followed by those of more items."""
        if self.codes_NLK.shape[1:] != more.codes_NLK.shape[1:] or self.sharpness != more.sharpness:
            raise DataError("mixtures of other codebooks or another sharpness cannot be joined")
        codes, weights = (
            np.concatenate([getattr(m, name) for m in (self, more)]) for name in ("codes_NLK", "weights_NLK")
        )
        return Mixtures(codes, weights, self.sharpness)

    def corrections(self, layout: TokenLayout, items_M: np.ndarray, own: Ragged) -> Corrections:
        """The corrections that turn the tokens of items (one row per item) into mixtures. Of a merged token only the
        members are mixed, each with the weight that it has in the token's vector; the own vector stays. A code that a
        collision policy substituted for the strongest one stays hard."""
        members = _members(layout).take(own.values)
        token_P, row_P = members.values.astype(np.int64), members.row_numbers
        depth_P = layout.depth_of[token_P]
        item_P = items_M[own.row_numbers[row_P]]
        mixed_PK = self.codes_NLK[item_P, depth_P] + layout.bases[depth_P][:, None]
        weights_PK = self.weights_NLK[item_P, depth_P]
        soft_P = (mixed_PK[:, 0] == token_P) & (weights_PK[:, 0] < 1)
        share_P = (1 / np.sqrt(members.lengths[row_P])).astype(np.float32)
        # Subtract the code itself (weight -1) and add its mixture: K + 1 entries per softened code.
        tokens_PJ = np.concatenate([token_P[:, None], mixed_PK], 1)[soft_P]
        weights_PJ = np.concatenate([np.full((len(token_P), 1), -1, np.float32), weights_PK], 1)[soft_P]
        weights_PJ = weights_PJ * share_P[soft_P, None]
        there = weights_PJ != 0
        row_E = np.broadcast_to(row_P[soft_P, None], there.shape)[there]
        lengths_R = np.bincount(row_E, minlength=len(own.values))
        return Corrections(Ragged.from_lengths(tokens_PJ[there], lengths_R), weights_PJ[there])

    def first_shares(self, layout: TokenLayout, items_M: np.ndarray, first_M: np.ndarray) -> tuple[Ragged, np.ndarray]:
        """The first depth's tokens of codes that items are mixtures of, one row per item, and their shares. `first_M`
        are the tokens that the items' ids begin with. An item whose first code a collision policy substituted has that
        code alone."""
        own_M = first_codes(layout, first_M)
        tokens_MK = self.codes_NLK[items_M, 0] + int(layout.bases[0])
        shares_MK = self.weights_NLK[items_M, 0]
        hard_M = tokens_MK[:, 0] != own_M
        tokens_MK = np.where(hard_M[:, None], own_M[:, None], tokens_MK)
        shares_MK = np.where(hard_M[:, None], np.arange(shares_MK.shape[1]) == 0, shares_MK).astype(np.float32)
        there_MK = shares_MK > 0
        return Ragged.from_lengths(tokens_MK[there_MK], there_MK.sum(1)), shares_MK[there_MK]

    def state(self) -> dict[str, np.ndarray]:
        return {"codes": self.codes_NLK, "weights": self.weights_NLK, "sharpness": np.array(self.sharpness)}

    @classmethod
    def from_state(cls, state: dict[str, np.ndarray]) -> Mixtures:
        return cls(state["codes"], state["weights"], float(state["sharpness"]))


def first_codes(layout: TokenLayout, tokens: np.ndarray) -> np.ndarray:
    """The unmerged token of a code that each token begins with; suffix and special tokens are their own."""
    members = _members(layout).take(tokens)
    out = np.array(tokens, dtype=np.int64)
    there = members.lengths > 0
    out[there] = members.values[members.offsets[:-1][there]]
    return out


def _members(layout: TokenLayout) -> Ragged:
    """Every token of the vocabulary as unmerged tokens of codes; none for suffix and special tokens."""
    merged = layout.merges.members
    plain = np.arange(layout.end - len(layout.merges))
    codes = Ragged.from_lengths(plain[layout.spans[plain] > 0].astype(np.int32), layout.spans[plain])
    return codes.append(merged) if len(layout.merges) else codes
