"""A world where it is known which tokens go together."""

from __future__ import annotations

import dataclasses

import numpy as np
from worlds import make_ids, make_table

from capsid.data.item_table import ItemTable
from capsid.ids.semantic_ids import SemanticIds
from capsid.ragged import Ragged
from capsid.tokenize.capsules.semantic_bpe import gate_training

QUICK = dataclasses.replace(gate_training(), steps=60)
# Depths of 6, 6 and 4 codes: tokens 2 to 7, 8 to 13, 14 to 17.
SIZES = (6, 6, 4)
ALIKE = [(2 + k, 8 + k) for k in range(4)]
POPULAR = (2 + 4, 8 + 5)


def planted(seed: int = 0) -> tuple[SemanticIds, ItemTable]:
    """Codes (k, k) belong to one direction. (4, 5) is taken most of all, but its codes are of two directions.

    Third codes are spread over everything, so they are like nothing.
    """
    rng = np.random.default_rng(seed)
    codes, directions, takes = [], [], []
    for k in range(4):
        for _ in range(6):
            codes.append([k, k, int(rng.integers(0, 4))])
            directions.append(k)
            takes.append(10)
    for first, second, n, take in ((4, 4, 10, 3), (5, 5, 30, 3), (4, 5, 1, 900)):
        for _ in range(n):
            codes.append([first, second])
            directions.append(first)
            takes.append(take)
    vectors = np.eye(8)[directions] + 0.1 * rng.normal(size=(len(codes), 8))
    taken = rng.permutation(np.repeat(np.arange(len(codes)), takes))
    sequences = Ragged.from_rows(np.array_split(taken, 200), np.int64)
    ids = make_ids(codes, SIZES)
    table = dataclasses.replace(
        make_table(vectors, names=list(ids.items)), counts=np.bincount(taken), sequences=sequences
    )
    return ids, table
