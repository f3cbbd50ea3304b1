"""Algorithm 1 over many items: codes with early exit, and traces of every depth.

Rows are routed in blocks of one fixed shape, the last one padded; those that remain are packed again at every depth,
so an item gets the same codes alone and in any batch. Equal to the bit for vectors of nine or more numbers (narrower
products depend on a row's position in the block). Residuals that are too large for memory are kept in a temporary file.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capsid.base.devices import keep_freed_memory
from capsid.errors import ArtifactError
from capsid.ids.order import SharedPrefixes, longer_keys, no_keys
from capsid.ragged import Ragged
from capsid.tokenize.base import CAP, CONFIDENCE, PREFIX, RESIDUAL, Stops, Trace, concatenated
from capsid.tokenize.capsules.algorithm import Step, algorithm_one, ends, one_depth
from capsid.tokenize.capsules.capsules import CapsuleNetwork, Capsules
from capsid.tokenize.capsules.settings import CapsuleSettings, StopRules
from capsid.tokenize.kmeans import padded_blocks

# Rows of one product, and rows per window: enough that padding the last block of a depth costs little.
BLOCK, WINDOW = 512, 8192
# Residuals that take more than this are kept in a file.
HELD_BYTES = 64_000_000


@dataclass(frozen=True, eq=False)
class Routes:
    """Results of every row up to its last depth; beyond it code -1, confidence -1 and an infinite residual. Shapes:
    (rows, depths)."""

    codes: np.ndarray
    confidence: np.ndarray
    residual: np.ndarray

    @property
    def depths(self) -> np.ndarray:
        """How many depths were computed for each row. Shape: (rows,)."""
        return (self.codes >= 0).sum(1)

    def cut(self, lengths_N: np.ndarray) -> tuple[Ragged, Ragged]:
        """Codes and confidences of ids of these lengths."""
        return Ragged.from_dense(self.codes, lengths_N), Ragged.from_dense(self.confidence, lengths_N)


# Whether ids may end at a depth: from the depth, the prefixes' keys, confidences and residual norms.
Leaves = Callable[[int, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def encode(
    settings: CapsuleSettings,
    network: CapsuleNetwork,
    vectors_NI: np.ndarray,
    shared: SharedPrefixes,
    *,
    confident: bool = True,
) -> tuple[Ragged, Ragged]:
    """Codes and confidences of any items under the prefix counts of the fit; no depth is computed after an id's end.
    Without `confident`, confidences are 0 if no rule reads them: they need a product of all pairs."""
    routes = _under(settings.rules, network, vectors_NI, shared, confident or settings.confidence > 0)
    return routes.cut(routes.depths)


def encode_catalogue(
    settings: CapsuleSettings, network: CapsuleNetwork, vectors_NI: np.ndarray
) -> tuple[tuple[Ragged, Ragged], SharedPrefixes]:
    """Codes of a whole catalogue under its own prefix counts, and those counts, in one pass if that suffices. An item
    leaves once its prefix is unique: its full code is then unique too, and no deeper prefix of it can be shared. Rules
    that let an id continue beyond a unique prefix need another pass over those items."""
    if settings.max_sharing <= 0:
        shared = SharedPrefixes.none(settings.codebooks)
        return encode(settings, network, vectors_NI, shared), shared
    routes = _window(network, vectors_NI, _alone, True)
    shared = SharedPrefixes.count(routes.codes, settings.codebooks, settings.max_sharing)
    lengths_N = stop(routes.confidence, routes.residual, shared.mask(routes.codes), settings.rules).lengths
    further = np.flatnonzero(lengths_N > routes.depths)
    if len(further):
        again = _under(settings.rules, network, vectors_NI[further], shared, True)
        for f in fields(Routes):
            getattr(routes, f.name)[further] = getattr(again, f.name)
        lengths_N[further] = again.depths
    return routes.cut(lengths_N), shared


def stop(confidence_ND: np.ndarray, residual_ND: np.ndarray, shared_ND: np.ndarray, rules: StopRules) -> Stops:
    """The first depth at which each id may end, from a trace. The cause is confidence if both rules fire, and the cap
    only if none did. If a shared prefix kept an id from ending earlier, the cause is the prefix."""
    wants_ND = ends(confidence_ND, residual_ND, rules.confidence, rules.residual)
    may_ND = wants_ND & ~shared_ND
    stopped_N = may_ND.any(1)
    lengths_N = np.where(stopped_N, may_ND.argmax(1) + 1, may_ND.shape[1])
    sure_N = confidence_ND[np.arange(len(lengths_N)), lengths_N - 1] >= rules.confidence
    causes_N = np.where(sure_N, CONFIDENCE, RESIDUAL)
    waited_N = stopped_N & (wants_ND.argmax(1) + 1 < lengths_N)
    causes_N = np.where(waited_N, PREFIX, causes_N)
    return Stops(lengths_N, np.where(stopped_N, causes_N, CAP))


def trace(network: CapsuleNetwork, vectors_NI: np.ndarray, *, strongest: int = 0) -> Trace:
    """Every depth of every item, with the given number of strongest capsules (finding them takes a third of the time).
    Rows are read block by block, so a mapped file need not fit into memory."""
    parts = [_traced(network, hard, steps, strongest) for hard, steps in blocks(network, vectors_NI)]
    return concatenated(parts)


def last_weights(network: CapsuleNetwork, vectors_NI: np.ndarray, ends_at: Callable[[Trace], np.ndarray]) -> np.ndarray:
    """Routing weights at the depth where each id ends; 0 beyond its codes. Shape: (items, most codes)."""
    widest = max(len(capsules) for capsules in network.depths)
    parts = [np.zeros((0, widest), dtype=np.float32)]
    for unit_BD, steps in blocks(network, vectors_NI):
        lengths_B = ends_at(_traced(network, unit_BD, steps, 0))
        out_BK = np.zeros((len(unit_BD), widest), dtype=np.float32)
        for length in np.unique(lengths_B):
            weights_BK = steps[length - 1].weights_BK[: len(unit_BD)].numpy()
            chosen = lengths_B == length
            out_BK[chosen, : weights_BK.shape[1]] = weights_BK[chosen]
        parts.append(out_BK)
    return np.concatenate(parts)


def blocks(network: CapsuleNetwork, vectors_NI: np.ndarray) -> Iterator[tuple[Tensor, list[Step]]]:
    """Unit vectors of each block and the steps of all its depths, padded: nobody leaves."""
    # An empty matrix still has a trace: one block without rows.
    for start in range(0, max(len(vectors_NI), 1), BLOCK):
        part = vectors_NI[start : start + BLOCK]
        padded_BI = np.zeros((BLOCK, network.inputs), dtype=np.float32)
        padded_BI[: len(part)] = part
        with torch.inference_mode():
            unit_BD = network.enter(torch.as_tensor(padded_BI))
            steps = [step for _, step in algorithm_one(network.depths, unit_BD, _nobody)]
        yield unit_BD[: len(part)], steps


def _nobody(_depth: int, rows: Tensor, _step: Step) -> Tensor:
    return torch.zeros(len(rows), dtype=torch.bool)


def _traced(network: CapsuleNetwork, unit_BD: Tensor, steps: list[Step], strongest: int) -> Trace:
    rows = len(unit_BD)
    before: list[Any] = [1.0, *(s.r_BD.norm(dim=1) for s in steps)]
    count = min(strongest, *(s.weights_BK.shape[1] for s in steps))
    top = [s.weights_BK.topk(count, dim=1) for s in steps]
    with torch.inference_mode():
        left = [unit_BD]
        for capsules, step in zip(network.depths, steps):
            left.append(left[-1] - capsules.centres[step.code_B[:rows]])
    columns: dict[str, list[Any]] = {
        "codes": [s.code_B.to(torch.int32) for s in steps],
        "confidence": [s.confidence_B for s in steps],
        "mass": [s.mass_B for s in steps],
        "soft": before[1:],
        "hard": [hard_BD.norm(dim=1) for hard_BD in left[1:]],
        # The paper's condition for a shrinking residual, read from the norms (CapsID, appendix A.1).
        "grew": [after > last * (1 + 1e-6) for last, after in itertools.pairwise(before)],
        "strongest": [t.indices.to(torch.int32) for t in top],
        "strongest_weight": [t.values for t in top],
    }
    return Trace(**{name: torch.stack([v[:rows] for v in values], 1).numpy() for name, values in columns.items()})


def _under(
    rules: StopRules, network: CapsuleNetwork, vectors_NI: np.ndarray, shared: SharedPrefixes, confident: bool
) -> Routes:
    def ended(depth: int, keys: np.ndarray, confidence: np.ndarray, residual: np.ndarray) -> np.ndarray:
        return ends(confidence, residual, rules.confidence, rules.residual) & ~shared.at(depth, keys)

    # An empty matrix still has one window, without rows.
    starts = range(0, max(len(vectors_NI), 1), WINDOW)
    return concatenated([_window(network, vectors_NI[s : s + WINDOW], ended, confident) for s in starts])


def _alone(_depth: int, keys: np.ndarray, _confidence: np.ndarray, _residual: np.ndarray) -> np.ndarray:
    """Rows with a unique prefix. Rows that left earlier cannot share it: their prefixes were already unique."""
    _, which_R, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return counts[which_R] == 1


def _window(network: CapsuleNetwork, vectors_RI: np.ndarray, leaves: Leaves, confident: bool) -> Routes:
    """Route rows through the depths, each until it leaves."""
    keep_freed_memory()
    shape = (len(vectors_RI), len(network.depths))
    codes_RL, confidence_RL = np.full(shape, -1, dtype=np.int32), np.full(shape, -1, dtype=np.float32)
    residual_RL = np.full(shape, np.inf, dtype=np.float32)
    keys_N = no_keys(len(vectors_RI))

    def ended(depth: int, rows: Tensor, step: _Blocked) -> Tensor:
        at = rows.numpy()
        keys_N[at] = longer_keys(keys_N[at], step.codes)
        codes_RL[at, depth], confidence_RL[at, depth], residual_RL[at, depth] = step.codes, step.confidence, step.norms
        return torch.as_tensor(leaves(depth, keys_N[at], step.confidence, step.norms))

    def advance(capsules: Capsules, left: _Residuals) -> _Blocked:
        return _advance(capsules, left, confident)

    for _ in algorithm_one(network.depths, _Residuals.enter(network, vectors_RI), ended, advance):
        pass
    return Routes(codes_RL, confidence_RL, residual_RL)


@dataclass(frozen=True, eq=False)
class _Residuals:
    """Residuals of the rows that are still routed, in memory or in a file, updated in place."""

    rows_RD: Tensor

    @classmethod
    def enter(cls, network: CapsuleNetwork, vectors_RI: np.ndarray) -> _Residuals:
        """Unit vectors in routing space (Algorithm 1, line 1)."""
        return cls(_stored(_entered(network, vectors_RI), (len(vectors_RI), network.depths[0].centres.shape[1])))

    def __len__(self) -> int:
        return len(self.rows_RD)

    def __getitem__(self, stays: Tensor) -> _Residuals:
        """Only the rows of this mask, moved to the front."""
        kept = stays.nonzero()[:, 0]
        for start in range(0, len(kept), WINDOW):
            part = kept[start : start + WINDOW]
            # Row i comes from row i or a later one, so nothing is overwritten before it is read.
            self.rows_RD[start : start + len(part)] = self.rows_RD[part]
        return _Residuals(self.rows_RD[: len(kept)])


@dataclass(frozen=True, eq=False)
class _Blocked:
    """A step of many rows, without the routing weights."""

    codes: np.ndarray
    confidence: np.ndarray
    norms: np.ndarray
    r_BD: _Residuals


def _advance(capsules: Capsules, left: _Residuals, confident: bool) -> _Blocked:
    """`one_depth`, block by block; without `confident`, confidences are 0."""
    rows = len(left)
    code_R, confidence_R, norm_R = torch.empty(rows, dtype=torch.int32), torch.zeros(rows), torch.empty(rows)
    padded_BD = torch.zeros(BLOCK, left.rows_RD.shape[1])
    for start in range(0, rows, BLOCK):
        part = slice(start, min(start + BLOCK, rows))
        count = part.stop - start
        padded_BD[:count] = left.rows_RD[part]
        with torch.inference_mode():
            step = one_depth(capsules, padded_BD, confident=confident)
            code_R[part] = step.code_B[:count]
            if step.confidence_B is not None:
                confidence_R[part] = step.confidence_B[:count]
            left.rows_RD[part] = step.r_BD[:count]
            norm_R[part] = left.rows_RD[part].norm(dim=1)
    return _Blocked(code_R.numpy(), confidence_R.numpy(), norm_R.numpy(), left)


def _entered(network: CapsuleNetwork, vectors_RI: np.ndarray) -> Iterator[Tensor]:
    """Unit vectors in routing space, block by block, so that rows of a mapped file are read once."""
    for padded_BI, rows in padded_blocks(vectors_RI, BLOCK):
        with torch.inference_mode():
            entered_BD = network.enter(padded_BI)[:rows]
        # Not from inside: whoever reads the blocks would be in that mode too.
        yield entered_BD


def _stored(blocks_BD: Iterable[Tensor], shape: tuple[int, int]) -> Tensor:
    """Blocks of rows as one matrix, in memory or in a temporary file that vanishes with it."""
    if 4 * shape[0] * shape[1] <= HELD_BYTES:
        out_RD, done = torch.empty(shape), 0
        for block_BD in blocks_BD:
            out_RD[done : done + len(block_BD)] = block_BD
            done += len(block_BD)
        return out_RD
    try:
        with tempfile.TemporaryFile(prefix="capsid-residuals-") as file:
            # Write, then map: a full disk is an error here, and would kill the process while it writes to a mapping.
            for block_BD in blocks_BD:
                file.write(block_BD.numpy().data)
            file.flush()
            return torch.as_tensor(np.memmap(file, dtype=np.float32, mode="r+", shape=shape))
    except OSError as error:
        raise ArtifactError(
            f"could not keep {4e-9 * shape[0] * shape[1]:.1f} GB of residuals in {tempfile.gettempdir()}: "
            f"{error.strerror or error}",
            hint="set TMPDIR to a folder with that much free space",
        ) from None
