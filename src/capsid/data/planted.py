"""Synthetic data whose best ids are known: items are leaves of a tree, users walk along its branches.

An item's vector is the sum of the node vectors on its path, whose norms decrease with depth, plus a little noise. All
parents of a depth share the same child vectors, so a residual quantizer should recover the true path. For tests and
scale benchmarks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import polars as pl

from capsid.base.randomness import numpy_rng
from capsid.base.vocabulary import Vocabulary
from capsid.data.dataset import Dataset
from capsid.errors import ConfigError
from capsid.ragged import Ragged

BRANCHING = (8, 4, 4)
ITEMS_PER_LEAF = 4
_WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "haven", "iris", "jade", "krill", "lotus")


def planted_paths(*, branching: Sequence[int] = BRANCHING, items_per_leaf: int = ITEMS_PER_LEAF) -> np.ndarray:
    """The true code of every item at every depth. Shape: (items, depths)."""
    if not branching or min(branching) < 1 or items_per_leaf < 1:
        raise ConfigError(
            f"a planted tree needs branches and items, got {tuple(branching)} with {items_per_leaf} items per leaf"
        )
    leaves = np.stack(np.unravel_index(np.arange(math.prod(branching)), tuple(branching)), axis=1)
    return np.repeat(leaves, items_per_leaf, axis=0).astype(np.int64)


def planted_vectors(
    *,
    branching: Sequence[int] = BRANCHING,
    items_per_leaf: int = ITEMS_PER_LEAF,
    dim: int = 32,
    decay: float = 0.5,
    noise: float = 0.02,
    seed: int = 0,
) -> np.ndarray:
    """Item vectors: node vectors of norm decay**depth along the path, plus noise of that norm. Shape: (items, dim)."""
    paths_ND = planted_paths(branching=branching, items_per_leaf=items_per_leaf)
    rng = numpy_rng(seed, "planted", "vectors")
    nodes = rng.normal(size=(max(dim, sum(branching)), dim))
    if sum(branching) <= dim:  # Orthogonal nodes if dim allows it: no two depths can be confused.
        nodes = np.linalg.qr(nodes)[0].T
    nodes = nodes / np.linalg.norm(nodes, axis=1, keepdims=True)
    vectors_ND = rng.normal(size=(len(paths_ND), dim)) * (noise / math.sqrt(dim))
    first = np.concatenate([[0], np.cumsum(branching)[:-1]])
    for depth in range(len(branching)):
        vectors_ND += decay**depth * nodes[first[depth] + paths_ND[:, depth]]
    return vectors_ND.astype(np.float32)


def planted_dataset(
    *,
    branching: Sequence[int] = BRANCHING,
    items_per_leaf: int = ITEMS_PER_LEAF,
    users: int = 600,
    length: int = 12,
    noise: float = 0.1,
    seed: int = 0,
) -> Dataset:
    """Users move to the next item under the same parent node; with probability `noise` they jump to a random item.

    No user takes an item twice, so some sequences are shorter than `length`. Attributes: title, categories (the path).
    """
    if not 0 <= noise <= 1 or users < 1 or length < 1:
        raise ConfigError("a planted dataset needs users and length of at least 1 and noise from 0 to 1")
    paths_ND = planted_paths(branching=branching, items_per_leaf=items_per_leaf)
    below = (branching[-1] if len(branching) > 1 else 1) * items_per_leaf
    walks_UL = _walks(len(paths_ND), below, users, length, noise, numpy_rng(seed, "planted", "walks"))
    sequences = _without_repeats(walks_UL)
    names = [[f"{_WORDS[d % len(_WORDS)]} {code}" for d, code in enumerate(path)] for path in paths_ND.tolist()]
    titles = [f"{' '.join(path)} item {i % items_per_leaf}" for i, path in enumerate(names)]
    return Dataset(
        name="planted",
        users=Vocabulary(f"u{i}" for i in range(users)),
        items=Vocabulary(f"i{i}" for i in range(len(paths_ND))),
        sequences=sequences,
        attributes=pl.DataFrame(
            {"title": titles, "categories": names}, schema={"title": pl.String, "categories": pl.List(pl.String)}
        ),
        # One clock for all users, so that a temporal split works.
        times=_clock(sequences, numpy_rng(seed, "planted", "times")),
        provenance={"source": "planted", "seed": str(seed)},
    )


def planted_codes(n_items: int, sizes: Sequence[int], *, seed: int = 0) -> np.ndarray:
    """Distinct synthetic ids for any number of items, fast. Shape: (n_items, len(sizes)), uint16.

    The space of ids is cut into n_items strata and one id is drawn from each, so ids are distinct without sorting.
    """
    head = len(sizes)
    while math.prod(sizes[:head]) >= 2**62:  # Beyond 62 bits, leading codes make ids distinct; the others are random.
        head -= 1
    space = math.prod(sizes[:head])
    if n_items < 1 or not sizes or min(sizes) < 1 or max(sizes) > 65536 or space < n_items:
        raise ConfigError(f"codes of sizes {tuple(sizes)} cannot distinguish {n_items} items")
    rng = numpy_rng(seed, "planted", "codes")
    stratum = space // n_items
    index_N = np.arange(n_items, dtype=np.int64) * stratum
    index_N += rng.integers(0, stratum, size=n_items, dtype=np.int64)
    codes_ND = np.empty((n_items, len(sizes)), dtype=np.uint16)
    for depth in range(len(sizes) - 1, head - 1, -1):
        codes_ND[:, depth] = rng.integers(0, sizes[depth], size=n_items)
    for depth in range(head - 1, -1, -1):
        codes_ND[:, depth] = index_N % sizes[depth]
        index_N //= sizes[depth]
    return codes_ND[rng.permutation(n_items)]


def _walks(items: int, below: int, users: int, length: int, noise: float, rng: np.random.Generator) -> np.ndarray:
    walks_UL = np.empty((users, length), dtype=np.int32)
    walks_UL[:, 0] = rng.integers(0, items, size=users)
    for step in range(1, length):
        here_U = walks_UL[:, step - 1]
        branch_U = here_U - here_U % below
        next_U = branch_U + (here_U - branch_U + 1) % below
        jumps_U = rng.random(users) < noise
        walks_UL[:, step] = np.where(jumps_U, rng.integers(0, items, size=users), next_U)
    return walks_UL


def _without_repeats(walks_UL: np.ndarray) -> Ragged:
    users, length = walks_UL.shape
    order = np.argsort(walks_UL, axis=1, kind="stable")
    ranked = np.take_along_axis(walks_UL, order, axis=1)
    again = np.zeros((users, length), dtype=bool)
    np.put_along_axis(again, order[:, 1:], ranked[:, 1:] == ranked[:, :-1], axis=1)
    return Ragged.from_lengths(walks_UL[~again], (~again).sum(axis=1))


def _clock(sequences: Ragged, rng: np.random.Generator) -> np.ndarray:
    lengths = sequences.lengths
    start_U = rng.integers(0, 10_000, size=len(lengths))
    return (np.repeat(start_U, lengths) + 100 * sequences.positions).astype(np.int64)
