"""Outputs of a fitted network, block by block: codes, confidences, residual norms, strongest capsules.

Blocks have one fixed shape, the last one padded, so an item gets the same codes alone and in any batch. Results are
equal to the bit for vectors of nine or more numbers (narrower products depend on a row's position in the block).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch

from capsid.base.blocks.weights import load_weights
from capsid.tokenize.capsules.network import CapsuleNetwork, Depth
from capsid.tokenize.capsules.settings import CapsuleSettings
from capsid.tokenize.trace import Trace

BLOCK = 512


def trace(network: CapsuleNetwork, vectors_NI: np.ndarray, *, strongest: int = 0) -> Trace:
    """The trace of a whole matrix; rows are read block by block, so a mapped file need not fit into memory."""
    return Trace.join(list(traces(network, vectors_NI, strongest=strongest)))


def traces(network: CapsuleNetwork, vectors_NI: np.ndarray, *, strongest: int = 0) -> Iterator[Trace]:
    """One trace per block, with the given number of strongest capsules (finding them takes a third of the time)."""
    return (_of(depths, rows, strongest) for depths, rows in _blocks(network, vectors_NI))


def last_weights(network: CapsuleNetwork, vectors_NI: np.ndarray, ends: Callable[[Trace], np.ndarray]) -> np.ndarray:
    """Routing weights at the depth where each id ends; 0 beyond its codes. Shape: (items, most codes)."""
    widest = max(layer.capsules for layer in network.depths)
    parts = [np.zeros((0, widest), dtype=np.float32)]
    for depths, rows in _blocks(network, vectors_NI):
        lengths_B = ends(_of(depths, rows, 0))
        out_BK = np.zeros((rows, widest), dtype=np.float32)
        for length in np.unique(lengths_B):
            weights_BK = depths[length - 1].routed.weights_BK[:rows].numpy()
            chosen = lengths_B == length
            out_BK[chosen, : weights_BK.shape[1]] = weights_BK[chosen]
        parts.append(out_BK)
    return np.concatenate(parts)


def _blocks(network: CapsuleNetwork, vectors_NI: np.ndarray) -> Iterator[tuple[list[Depth], int]]:
    """Routed blocks of one shape, each with its number of rows before padding."""
    padded = np.zeros((BLOCK, network.inputs), dtype=np.float32)
    # An empty matrix still has a trace: one block that keeps no rows.
    for start in range(0, max(len(vectors_NI), 1), BLOCK):
        part = vectors_NI[start : start + BLOCK]
        padded[: len(part)] = part
        with torch.inference_mode():
            depths = network(network.enter(torch.as_tensor(padded)))
        yield depths, len(part)


def leave(network: CapsuleNetwork, z_ND: np.ndarray) -> np.ndarray:
    """Map vectors from routing space to input space. Shape: (items, inputs)."""
    if network.project is None:
        return z_ND
    with torch.inference_mode():
        return network.project.decode(torch.as_tensor(z_ND)).numpy()


def load_network(settings: CapsuleSettings, state: Mapping[str, np.ndarray]) -> CapsuleNetwork:
    """Rebuild a network from its saved arrays."""
    prefix = "network/"
    own = {n[len(prefix) :]: torch.tensor(a) for n, a in state.items() if n.startswith(prefix)}
    inputs = int(state["inputs"])
    return load_weights(lambda: CapsuleNetwork(settings, inputs, torch.Generator()), own).requires_grad_(False)


def _of(depths: list[Depth], rows: int, strongest: int) -> Trace:
    before = [1.0] + [d.soft_BD.norm(dim=1) for d in depths]
    count = min(strongest, *(d.routed.weights_BK.shape[1] for d in depths))
    top = [d.routed.weights_BK.topk(count, dim=1) for d in depths]
    columns = {
        "codes": [d.code_B.to(torch.int32) for d in depths],
        "confidence": [d.confidence_B for d in depths],
        "mass": [d.mass_B for d in depths],
        "soft": before[1:],
        "hard": [d.hard_BD.norm(dim=1) for d in depths],
        # The paper's condition for a shrinking residual, read from the norms (CapsID, appendix A.1).
        "grew": [after > last * (1 + 1e-6) for last, after in itertools.pairwise(before)],
        "strongest": [t.indices.to(torch.int32) for t in top],
        "strongest_weight": [t.values for t in top],
    }
    return Trace(**{name: torch.stack(values, 1)[:rows].numpy() for name, values in columns.items()})
