"""The end of stage 2's adapting: bound the churn, fold the adapters, count prefixes anew (methods 6.6, G4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from capsid.ragged import Ragged
from capsid.tokenize.capsules.adapters import fold, limit
from capsid.tokenize.capsules.encoding import trace, traces
from capsid.tokenize.capsules.network import CapsuleNetwork
from capsid.tokenize.capsules.stage_one import drift_reference
from capsid.tokenize.capsules.stopping import Crowded

if TYPE_CHECKING:
    from capsid.tokenize.capsules.tokenizer import CapsuleTokenizer


@dataclass(frozen=True, eq=False)
class Settled:
    """What a tokenizer keeps beside its network, for the routing as it is now."""

    crowded: Crowded
    reference: np.ndarray


def settle_adapters(
    settings: CapsuleTokenizer, network: CapsuleNetwork, vectors_NI: np.ndarray, codes: Ragged, most: float
) -> Settled:
    """Scale the adapters until at most a share `most` of the items leaves its old codes, and make them permanent."""
    rows = np.linspace(0, len(vectors_NI) - 1, min(len(vectors_NI), settings.sample)).astype(np.int64)
    sample_NI = np.array(vectors_NI[rows], dtype=np.float32)
    old_NL = codes.take(rows).dense()

    def changed() -> float:
        new_NL = trace(network, sample_NI).codes[:, : old_NL.shape[1]]
        # Beyond its old end an item has no code that could have changed.
        return float(((new_NL != old_NL) & (old_NL >= 0)).any(1).mean())

    limit(network, changed, most)
    fold(network)
    full_NL = np.concatenate([t.codes for t in traces(network, vectors_NI)])
    return Settled(
        Crowded.count(full_NL, settings.codebooks, settings.crowd), drift_reference(trace(network, sample_NI))
    )
