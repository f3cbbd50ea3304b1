"""What `decode.py` searches: a fitted run, or synthetic weights, ids and histories, so that anybody can run it.

Synthetic data is shaped like Amazon Beauty: 12,101 items, 3 codes of 256 and a suffix, histories of 4 to 50 items.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from capsid.base.vocabulary import Vocabulary
from capsid.data.planted import planted_codes
from capsid.errors import ConfigError
from capsid.generate.generator import TransformerGenerator
from capsid.ids.collisions import Bucket, Suffix
from capsid.ids.layout import FIRST
from capsid.ids.reading import TokenBatch
from capsid.ids.semantic_ids import SemanticIds
from capsid.ids.trie import Trie
from capsid.ragged import Ragged

BEAUTY_ITEMS = 12_101


@dataclass(frozen=True, eq=False)
class World:
    """A model, its ids and trie, and the histories of the users to serve."""

    name: str
    generator: TransformerGenerator
    ids: SemanticIds
    trie: Trie
    histories: Ragged

    def batch(self) -> TokenBatch:
        """The histories as tokens."""
        return self.ids.read(self.histories, last=self.generator.history)


def made_world(users: int, *, items: int = BEAUTY_ITEMS, seed: int = 0) -> World:
    """Beauty's shape with nothing learnt."""
    rng = np.random.default_rng(seed)
    ids = made_ids(items, (256, 256, 256), rng)
    generator = TransformerGenerator().build(ids, np.ones(items), seed=seed)
    know_depths(generator, ids)
    return World("made", generator, ids, Trie.build(ids.prefix_free), made_histories(users, items, rng))


def made_histories(users: int, items: int, rng: np.random.Generator) -> Ragged:
    """As long as Beauty's: half have at most 5 items, one in ten more than 12, one in a hundred more than 40."""
    lengths = np.minimum(4 / np.sqrt(1 - rng.random(users)), 50).astype(int)
    return Ragged.from_rows([rng.integers(0, items, size=n) for n in lengths], np.int64)


def world_of_run(folder: Path, users: int, *, seed: int = 0) -> World:
    """A fitted recommender's weights and ids, and users of its test split drawn at random."""
    from capsid.recommender import Recommender

    recommender = Recommender.from_pretrained(folder)
    fitted, cases = recommender.fitted, recommender.catalogue_.split.cases("test")
    if not isinstance(fitted.generator, TransformerGenerator):
        raise ConfigError(f"{folder} holds no Transformer", hint="give a run of rq-kmeans")
    chosen = np.random.default_rng(seed).choice(len(cases), size=min(users, len(cases)), replace=False)
    return World(
        f"{recommender.recipe.name} on {recommender.catalogue_.name}",
        fitted.generator,
        fitted.tokenizer.ids,
        fitted.model.trie,
        cases.histories.take(np.sort(chosen)),
    )


def made_ids(items: int, sizes: tuple[int, ...], rng: np.random.Generator) -> SemanticIds:
    """Random codes; every third item stands close to another one, so that prefixes and some whole codes are shared."""
    codes_ND = rng.integers(0, sizes, size=(items, len(sizes))).astype(np.int32)
    near = np.flatnonzero(rng.random(items) < 0.3)
    kept = rng.integers(1, len(sizes) + 1, size=len(near))
    source = codes_ND[rng.integers(0, items, size=len(near))]
    codes_ND[near] = np.where(np.arange(len(sizes))[None, :] < kept[:, None], source, codes_ND[near])
    return SemanticIds.assign(Vocabulary(map(str, range(items))), Ragged.from_dense(codes_ND), sizes, Suffix())


def large_trie(items: int, sizes: tuple[int, ...]) -> Trie:
    """The trie of distinct made ids over the tokens of `sizes`, for catalogues of any size."""
    return Trie.build(made_rows(items, sizes))


def made_rows(items: int, sizes: tuple[int, ...], *, seed: int = 0) -> Ragged:
    """Distinct token rows in an order that is not sorted."""
    codes_ND = planted_codes(items, sizes, seed=seed).astype(np.int32)
    codes_ND += FIRST + np.cumsum((0, *sizes[:-1])).astype(np.int32)
    return Ragged(codes_ND.reshape(-1), np.arange(items + 1, dtype=np.int64) * len(sizes))


def growth_world(users: int, sizes: tuple[int, ...], *, seed: int = 0) -> World:
    """Weights over the tokens of `sizes`, and histories of a few ids: the same for every catalogue."""
    items, rng = 1000, np.random.default_rng(seed)
    codes = Ragged.from_dense(planted_codes(items, sizes).astype(np.int32))
    ids = SemanticIds.assign(Vocabulary(map(str, range(items))), codes, sizes, Bucket())
    generator = TransformerGenerator().build(ids, np.ones(items), seed=seed)
    know_depths(generator, ids)
    return World("made", generator, ids, Trie.build(ids.prefix_free), made_histories(users, items, rng))


def know_depths(generator: TransformerGenerator, ids: SemanticIds, *, strength: float = 6.0) -> None:
    """Let made weights know what training teaches first: which depth comes next, and that the first suffix is usual.

    Without it every token would be as likely as any other, as in no trained model, and nothing could be pruned.
    The tokens of one depth get a direction of their own, and the depth before it points there. Also spreads the
    scores, so that two ways to compute them cannot differ in order by rounding alone.
    """
    network, layout = generator.network, ids.layout
    source = torch.Generator().manual_seed(1)
    width = network.shape.width
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() == 2:
                parameter.mul_(4.0)
        directions = torch.linalg.qr(torch.randn(width, width, generator=source))[0][: layout.depths]
        for depth in range(layout.depths):
            tokens = torch.from_numpy(np.flatnonzero(layout.depth_of == depth))
            if depth == len(layout.sizes):
                tokens = tokens[:1]
            network.token.weight[tokens] += strength * directions[depth] / 2
            network.depth.weight[(depth - 1) % layout.depths] += strength * directions[depth]
