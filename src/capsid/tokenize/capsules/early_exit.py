"""Codes with early exit: an item is routed only as deep as its id goes.

`trace` of `capsid.tokenize.capsules.encoding` computes every depth of every item; reports use it, and it is the slow
twin of this module. The remaining rows are packed into blocks of the same fixed shape, so results are equal to the bit.
Residuals of a catalogue that is too large for memory are kept in a temporary file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from capsid.base.freed_memory import keep_freed_memory
from capsid.errors import ArtifactError
from capsid.ragged import Ragged
from capsid.tokenize.capsules.encoding import BLOCK
from capsid.tokenize.capsules.network import CapsuleLayer, CapsuleNetwork
from capsid.tokenize.capsules.settings import CapsuleSettings
from capsid.tokenize.stopping import SharedPrefixes, longer_keys, may_end, no_keys, stop

# Rows per window, enough that padding the last block of a depth costs little.
WINDOW = 8192
# Residuals that take more than this are kept in a file.
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
    settings: CapsuleSettings,
    network: CapsuleNetwork,
    vectors_NI: np.ndarray,
    shared: SharedPrefixes,
    *,
    confident: bool = True,
) -> Encoded:
    """Codes of any items under the prefix counts of the fit; no depth is computed after an id has ended.

    Without `confident`, confidences are 0 if no rule reads them: they need a product of all pairs.
    """
    routes = _routes(settings, network, vectors_NI, shared, confident=confident or settings.confidence > 0)
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
    routes = _window(settings, network, vectors_NI, _alone)
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
    settings: CapsuleSettings,
    network: CapsuleNetwork,
    vectors_NI: np.ndarray,
    shared: SharedPrefixes,
    *,
    confident: bool = True,
) -> Routes:
    def ended(depth: int, live: Live) -> np.ndarray:
        is_shared_R = shared.at(depth, live.keys)
        return may_end(live.confidence, live.residual, is_shared_R, depth, settings.rules)

    return Routes.join([_window(settings, network, part, ended, confident) for part in _windows(vectors_NI)])


def _windows(vectors_NI: np.ndarray) -> Iterator[np.ndarray]:
    # An empty matrix still has one window, without rows.
    return (vectors_NI[start : start + WINDOW] for start in range(0, max(len(vectors_NI), 1), WINDOW))


def _alone(_depth: int, live: Live) -> np.ndarray:
    """Rows with a unique prefix. Rows that left earlier cannot share it: their prefixes were already unique."""
    _, which_R, counts = np.unique(live.keys, return_inverse=True, return_counts=True)
    return counts[which_R] == 1


def _window(
    settings: CapsuleSettings,
    network: CapsuleNetwork,
    vectors_RI: np.ndarray,
    leaves: Leaves,
    confident: bool = True,
) -> Routes:
    """Route rows through the depths, each until it leaves."""
    keep_freed_memory()
    shape = (len(vectors_RI), len(network.depths))
    codes_RL, confidence_RL = np.full(shape, -1, dtype=np.int32), np.full(shape, -1, dtype=np.float32)
    residual_RL = np.full(shape, np.inf, dtype=np.float32)
    rows, keys = np.arange(len(vectors_RI)), no_keys(len(vectors_RI))
    left = _Residuals.enter(network, vectors_RI, hard=settings.residual_of == "hard" and settings.confidence > 0)
    for depth, layer in enumerate(network.depths):
        codes, confidence, residual = _advance(layer, left, confident)
        codes_RL[rows, depth], confidence_RL[rows, depth], residual_RL[rows, depth] = codes, confidence, residual
        keys = longer_keys(keys, codes)
        stays = ~leaves(depth, Live(rows, keys, confidence, residual))
        if not stays.any():
            break
        if not stays.all():
            rows, keys, left = rows[stays], keys[stays], left.keep(np.flatnonzero(stays))
    return Routes(codes_RL, confidence_RL, residual_RL)


@dataclass(frozen=True, eq=False)
class _Residuals:
    """Residuals of the rows that are still routed, updated in place.

    `hard_RD` is None where no rule reads it: with `confidence=0` an id may end anywhere, whatever its residual is.
    """

    soft_RD: Tensor
    hard_RD: Tensor | None

    @classmethod
    def enter(cls, network: CapsuleNetwork, vectors_RI: np.ndarray, *, hard: bool) -> _Residuals:
        """Unit vectors in routing space."""
        shape = len(vectors_RI), network.depths[0].centres.shape[1]
        soft_RD = _stored(_entered(network, vectors_RI), shape)
        return cls(soft_RD, _stored(soft_RD.split(WINDOW), shape) if hard else None)

    def __len__(self) -> int:
        return len(self.soft_RD)

    def keep(self, kept: np.ndarray) -> _Residuals:
        """Only these rows (ascending), moved to the front."""
        for rows_RD in (self.soft_RD, self.hard_RD):
            for start in range(0, len(kept) if rows_RD is not None else 0, WINDOW):
                part = torch.as_tensor(kept[start : start + WINDOW])
                # Row i comes from row i or a later one, so nothing is overwritten before it is read.
                rows_RD[start : start + len(part)] = rows_RD[part]  # type: ignore[index]
        return _Residuals(self.soft_RD[: len(kept)], None if self.hard_RD is None else self.hard_RD[: len(kept)])


def _stored(blocks: Iterable[Tensor], shape: tuple[int, int]) -> Tensor:
    """Blocks of rows as one matrix, in memory or in a temporary file that vanishes with it."""
    if 4 * shape[0] * shape[1] <= HELD_BYTES:
        out_RD, done = torch.empty(shape), 0
        for block_BD in blocks:
            out_RD[done : done + len(block_BD)] = block_BD
            done += len(block_BD)
        return out_RD
    try:
        with tempfile.TemporaryFile(prefix="capsid-residuals-") as file:
            # Write, then map: a full disk is an error here, and would kill the process while it writes to a mapping.
            for block_BD in blocks:
                file.write(block_BD.numpy().data)
            file.flush()
            return torch.as_tensor(np.memmap(file, dtype=np.float32, mode="r+", shape=shape))
    except OSError as error:
        raise ArtifactError(
            f"could not keep {4e-9 * shape[0] * shape[1]:.1f} GB of residuals in {tempfile.gettempdir()}: "
            f"{error.strerror or error}",
            hint="set TMPDIR to a folder with that much free space",
        ) from None


def _entered(network: CapsuleNetwork, vectors_RI: np.ndarray) -> Iterator[Tensor]:
    """Unit vectors in routing space, block by block, so that rows of a mapped file are read once."""
    padded_BI = np.zeros((BLOCK, network.inputs), dtype=np.float32)
    for start in range(0, len(vectors_RI), BLOCK):
        part = vectors_RI[start : start + BLOCK]
        padded_BI[: len(part)] = part
        with torch.inference_mode():
            entered_BD = network.enter(torch.as_tensor(padded_BI))[: len(part)]
        # Not from inside: whoever reads the blocks would be in that mode too.
        yield entered_BD


def _advance(layer: CapsuleLayer, left: _Residuals, confident: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Update the residuals by one depth; returns codes, confidences (or 0) and residual norms."""
    rows = len(left)
    code_R, confidence_R, residual_R = torch.empty(rows, dtype=torch.int32), torch.zeros(rows), torch.empty(rows)
    soft_BD = torch.zeros(BLOCK, left.soft_RD.shape[1])
    for start in range(0, rows, BLOCK):
        part = slice(start, min(start + BLOCK, rows))
        count = part.stop - start
        soft_BD[:count] = left.soft_RD[part]
        with torch.inference_mode():
            after = layer.assign(soft_BD, confident=confident)
            code_R[part] = after.code_B[:count]
            if after.confidence_B is not None:
                confidence_R[part] = after.confidence_B[:count]
            left.soft_RD[part] = after.soft_BD[:count]
            if left.hard_RD is not None:
                left.hard_RD[part] -= layer.centres[after.code_B[:count]]
            residual_R[part] = (left.soft_RD if left.hard_RD is None else left.hard_RD)[part].norm(dim=1)
    return code_R.numpy(), confidence_R.numpy(), residual_R.numpy()
