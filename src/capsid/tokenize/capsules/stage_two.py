"""The end of stage 2: limit how many ids change, fold the adapters into the poses, recount the prefixes.

The generator was trained on the old ids, so too many changes would undo what it learnt.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from capsid.ragged import Ragged
from capsid.tokenize.capsules.adapters import fold, limit
from capsid.tokenize.capsules.early_exit import encode_catalogue
from capsid.tokenize.capsules.network import CapsuleNetwork
from capsid.tokenize.capsules.settings import CapsuleSettings
from capsid.tokenize.capsules.stage_one import drift_reference, reference_trace
from capsid.tokenize.stopping import SharedPrefixes


@dataclass(frozen=True, eq=False)
class Settled:
    """The tokenizer's state beside its network, for the current routing."""

    shared: SharedPrefixes
    reference: np.ndarray


def settle_adapters(
    settings: CapsuleSettings, network: CapsuleNetwork, vectors_NI: np.ndarray, codes: Ragged, most: float
) -> Settled:
    """Scale the adapters until at most a share `most` of the items has other codes, and make them permanent.

    Every trial encodes the whole catalogue, because an id's length also depends on the codes of other items.
    """

    def changed() -> float:
        new = encode_catalogue(settings, network, vectors_NI)[0].codes
        return float(np.mean([not np.array_equal(a, b) for a, b in zip(codes, new)]))

    limit(network, changed, most)
    fold(network)
    shared = encode_catalogue(settings, network, vectors_NI)[1]
    return Settled(shared, drift_reference(reference_trace(network, vectors_NI)))
