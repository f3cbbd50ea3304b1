"""Codes with early exit: an item is routed only as deep as its id goes.

`trace` of `capsid.tokenize.capsules.encoding` computes every depth of every item; reports use it, and it is the slow
twin of this module. The remaining rows are packed into blocks of the same fixed shape, so results are equal to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from capsid.memory import keep_freed_memory
from capsid.ragged import Ragged
from capsid.tokenize.capsules.encoding import BLOCK
from capsid.tokenize.capsules.network import CapsuleLayer, CapsuleNetwork
from capsid.tokenize.capsules.settings import CapsuleSettings
from capsid.tokenize.stopping import SharedPrefixes, longer_keys, may_end, no_keys, stop

# Rows per window, enough that padding the last block of a depth costs little.
WINDOW = 8192
# A catalogue whose residuals take no more than this is routed in one window.
HELD_BYTES = 64_000_000


@dataclass(frozen=True, eq=False)
class Live:
    """The rows that reached a depth, and its results. Shapes: (rows,)."""

    rows: np.ndarray
    keys: np.ndarray
    confidence: np.ndarray
    residual: np.ndarray


Leaves = Callable[[int, Live], np.ndarray]


@dataclass(frozen=True, eq=False)
class Routes:
    """Results of every row up to its last depth; beyond it code -1, confidence -1 and an infinite residual.

    Shapes: (rows, depths).
    """

    codes: np.ndarray
    confidence: np.ndarray
    residual: np.ndarray

    @classmethod
    def join(cls, parts: list[Routes]) -> Routes:
        """Concatenate rows."""
        return cls(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(cls)})

    @property
    def depths(self) -> np.ndarray:
        """How many depths were computed for each row. Shape: (rows,)."""
        return (self.codes >= 0).sum(1)


@dataclass(frozen=True, eq=False)
class Encoded:
    """Ids as codes, and a confidence for each code."""

    codes: Ragged
    confidences: Ragged


def encode(
    settings: CapsuleSettings, network: CapsuleNetwork, vectors_NI: np.ndarray, shared: SharedPrefixes
) -> Encoded:
    """Codes of any items under the prefix counts of the fit; no depth is computed after an id has ended."""
    routes = _routes(settings, network, vectors_NI, shared)
    return _cut(routes, routes.depths)


def encode_catalogue(
    settings: CapsuleSettings, network: CapsuleNetwork, vectors_NI: np.ndarray
) -> tuple[Encoded, SharedPrefixes]:
    """Codes of a whole catalogue under its own prefix counts, and those counts, in one pass if that suffices.

    An item leaves once its prefix is unique: its full code is then unique too, and no deeper prefix of it can be
    shared. Rules that let an id continue beyond a unique prefix need another pass over those items.
    """
    if settings.max_sharing <= 0:
        shared = SharedPrefixes.none(settings.codebooks)
        return encode(settings, network, vectors_NI, shared), shared
    width = network.depths[0].centres.shape[1]
    if 4 * width * len(vectors_NI) <= HELD_BYTES:
        routes = _window(settings, network, vectors_NI, _alone)
    else:  # Unique prefixes are known only after a depth has seen all rows, and their residuals do not fit in memory.
        routes = Routes.join([_window(settings, network, part, _nobody) for part in _windows(vectors_NI)])
    shared = SharedPrefixes.count(routes.codes, settings.codebooks, settings.max_sharing)
    lengths_N = stop(routes.confidence, routes.residual, shared.mask(routes.codes), settings.rules).lengths
    further = np.flatnonzero(lengths_N > routes.depths)
    if len(further):
        again = _routes(settings, network, vectors_NI[further], shared)
        for f in fields(Routes):
            getattr(routes, f.name)[further] = getattr(again, f.name)
        lengths_N[further] = again.depths
    return _cut(routes, lengths_N), shared


def _cut(routes: Routes, lengths_N: np.ndarray) -> Encoded:
    return Encoded(Ragged.from_dense(routes.codes, lengths_N), Ragged.from_dense(routes.confidence, lengths_N))


def _routes(
    settings: CapsuleSettings, network: CapsuleNetwork, vectors_NI: np.ndarray, shared: SharedPrefixes
) -> Routes:
    def ended(depth: int, live: Live) -> np.ndarray:
        is_shared_R = shared.at(depth, live.keys)
        return may_end(live.confidence, live.residual, is_shared_R, depth, settings.rules)

    return Routes.join([_window(settings, network, part, ended) for part in _windows(vectors_NI)])


def _windows(vectors_NI: np.ndarray) -> Iterator[np.ndarray]:
    # An empty matrix still has one window, without rows.
    return (vectors_NI[start : start + WINDOW] for start in range(0, max(len(vectors_NI), 1), WINDOW))


def _alone(_depth: int, live: Live) -> np.ndarray:
    """Rows with a unique prefix. Rows that left earlier cannot share it: their prefixes were already unique."""
    _, which_R, counts = np.unique(live.keys, return_inverse=True, return_counts=True)
    return counts[which_R] == 1


def _nobody(_depth: int, live: Live) -> np.ndarray:
    return np.zeros(len(live.rows), dtype=bool)


def _window(settings: CapsuleSettings, network: CapsuleNetwork, vectors_RI: np.ndarray, leaves: Leaves) -> Routes:
    """Route rows through the depths, each until it leaves."""
    keep_freed_memory()
    shape = (len(vectors_RI), len(network.depths))
    codes_RL, confidence_RL = np.full(shape, -1, dtype=np.int32), np.full(shape, -1, dtype=np.float32)
    residual_RL = np.full(shape, np.inf, dtype=np.float32)
    rows, keys = np.arange(len(vectors_RI)), no_keys(len(vectors_RI))
    soft_RD = _entered(network, vectors_RI)
    hard_RD = soft_RD.clone()
    for depth, layer in enumerate(network.depths):
        codes, confidence, residual = _advance(layer, soft_RD, hard_RD, settings.residual_of)
        codes_RL[rows, depth], confidence_RL[rows, depth], residual_RL[rows, depth] = codes, confidence, residual
        keys = longer_keys(keys, codes)
        stays = ~leaves(depth, Live(rows, keys, confidence, residual))
        if not stays.any():
            break
        if not stays.all():
            rows, keys, kept = rows[stays], keys[stays], torch.as_tensor(stays)
            soft_RD, hard_RD = soft_RD[kept], hard_RD[kept]
    return Routes(codes_RL, confidence_RL, residual_RL)


def _entered(network: CapsuleNetwork, vectors_RI: np.ndarray) -> Tensor:
    """Unit vectors in routing space, block by block, so that rows of a mapped file are read once."""
    out_RD = torch.empty(len(vectors_RI), network.depths[0].centres.shape[1])
    padded_BI = np.zeros((BLOCK, network.inputs), dtype=np.float32)
    for start in range(0, len(vectors_RI), BLOCK):
        part = vectors_RI[start : start + BLOCK]
        padded_BI[: len(part)] = part
        with torch.inference_mode():
            out_RD[start : start + len(part)] = network.enter(torch.as_tensor(padded_BI))[: len(part)]
    return out_RD


def _advance(
    layer: CapsuleLayer, soft_RD: Tensor, hard_RD: Tensor, residual_of: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Update both residuals by one depth, in place; returns codes, confidences and residual norms."""
    rows = len(soft_RD)
    code_R, confidence_R, residual_R = torch.empty(rows, dtype=torch.int32), torch.empty(rows), torch.empty(rows)
    soft_BD, hard_BD = torch.zeros(2, BLOCK, soft_RD.shape[1])
    for start in range(0, rows, BLOCK):
        part = slice(start, min(start + BLOCK, rows))
        count = part.stop - start
        soft_BD[:count], hard_BD[:count] = soft_RD[part], hard_RD[part]
        with torch.inference_mode():
            after = layer(soft_BD, hard_BD)
            left_BD = after.hard_BD if residual_of == "hard" else after.soft_BD
            code_R[part], confidence_R[part] = after.code_B[:count], after.confidence_B[:count]
            residual_R[part] = left_BD.norm(dim=1)[:count]
            soft_RD[part], hard_RD[part] = after.soft_BD[:count], after.hard_BD[:count]
    return code_R.numpy(), confidence_R.numpy(), residual_R.numpy()
