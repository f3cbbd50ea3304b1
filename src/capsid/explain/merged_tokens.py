"""Describes merged tokens: the most used ones with examples, and those of one item."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from capsid.base.popularity import TIERS
from capsid.base.vocabulary import Vocabulary
from capsid.errors import ConfigError
from capsid.evaluate.merge_report import MergeUse, merge_uses
from capsid.explain.answers import Merges, Shortened, ShownMerge, Subword, Titled
from capsid.tokenize.capsules.semantic_bpe import SemanticBPE
from capsid.tokenize.item_tokenizer import ItemTokenizer

EXAMPLES = 3
Title = Callable[[int], str]


def merges_of(tokenizer: ItemTokenizer, title: Title, *, top: int) -> Merges:
    """The merged tokens most frequent in training, and the effect of merging on lengths."""
    if tokenizer.merges_ is None:
        raise ConfigError("these ids have no merges", hint="fit a recipe with merges, such as capsid-bpe")
    ids, merges = tokenizer.ids, tokenizer.merges_
    if not isinstance(merges, SemanticBPE):
        raise ConfigError(
            f"merges={merges.kind} join codes of neighbouring items, so an item does not show what they mean",
            hint="`capsid tokenizer inspect` shows the merged tokens of an item",
        )
    uses = merge_uses(ids, merges)
    best = sorted(uses, key=lambda use: (-use.taken, -len(use.items), use.token))[:top]
    return Merges(
        count=len(uses),
        tokens_an_item=Shortened(float(ids.unmerged.lengths.mean()), float(ids.tokens.lengths.mean())),
        merges=tuple(_shown(use, merges.counts_, ids.items, title) for use in best),
    )


def subwords_of(tokenizer: ItemTokenizer, row: int) -> tuple[Subword, ...] | None:
    """The codes behind each token of an item; None without merges."""
    if tokenizer.merges_ is None:
        return None
    ids, merges = tokenizer.ids, tokenizer.merges_
    tokens = ids.tokens[row].tolist()
    # Not the carriers of all tokens: a large catalogue has many.
    carriers = {
        t: np.searchsorted(ids.tokens.offsets, np.flatnonzero(ids.tokens.values == t), "right") - 1 for t in tokens
    }
    counts_N = np.zeros(len(ids), dtype=np.int64)
    counts_N[: len(merges.counts_)] = merges.counts_
    return tuple(
        Subword(
            token=token,
            depth=int(ids.layout.depth_of[token]) + 1,
            codes=tuple(ids.layout.codes_of(token)),
            merged=bool(len(ids.layout.merges)) and token >= ids.layout.merges.first,
            items=len(carriers[token]),
            taken=int(counts_N[carriers[token]].sum()),
        )
        for token in tokens
    )


def _shown(use: MergeUse, counts_N: np.ndarray, items: Vocabulary, title: Title) -> ShownMerge:
    # Most popular first: readers recognise those.
    known = sorted(use.items, key=lambda n: (-int(counts_N[n]) if n < len(counts_N) else 0, n))[:EXAMPLES]
    return ShownMerge(
        token=use.token,
        depth=use.depth + 1,
        codes=tuple(use.codes),
        strength=round(use.strength, 6),
        count=use.count,
        cosine=round(use.cosine, 6),
        items=len(use.items),
        taken=use.taken,
        tiers=dict(zip(TIERS, use.tiers)),
        tokens_before=use.tokens_before,
        tokens_after=use.tokens_after,
        examples=tuple(Titled(items[n], title(n)) for n in known),
    )
