"""A mixture of parallel quantisers over two views of an item (ADA-SID: Xu et al. 2025, arXiv 2510.25622).

One code per open expert, in the order shared, content, behaviour. A closed behaviour expert gives no token; new items
and others without behaviour have none of them open. Training is imported on demand.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from capsid.base.run_options import CheckpointFile
from capsid.base.vocabulary import Vocabulary
from capsid.data.item_table import ItemTable
from capsid.encode.base import below, check_vectors, fitted, has_evidence, pack_strings, require_items, unpack_strings
from capsid.errors import DataError
from capsid.progress import Progress, silent
from capsid.ragged import Ragged
from capsid.tokenize.rivals import mixture_network as networks
from capsid.tokenize.rivals.mixture_network import MixtureNetwork, MixtureSettings

# Items at this quantile of training counts and above are rich: one outlier must not make all others poor.
RICH = 0.99


def richness(counts_N: np.ndarray) -> np.ndarray:
    """How much behaviour items have, from 0 to 1: the log of their counts, relative to rich items. Without any count
    all items are rich. Shape: (items,)."""
    if not counts_N.any():
        return np.ones(len(counts_N), dtype=np.float32)
    logs_N = np.log1p(counts_N)
    return np.minimum(logs_N / max(np.quantile(logs_N, RICH), np.log(2)), 1).astype(np.float32)


@dataclass(kw_only=True)
class Mixture(MixtureSettings):
    """The settings, and after `fit` the network."""

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(book_KD) for book_KD in self._fitted().books)

    def fit(
        self, table: ItemTable, *, seed: int = 0, progress: Progress = silent, checkpoint: CheckpointFile | None = None
    ) -> Mixture:
        """Train on both views of the items; at least one item must have behaviour."""
        from capsid.tokenize.rivals.mixture_fit import fit_mixture

        require_items(table)
        self.items_, self.richness_ = table.items, richness(table.counts)
        vectors_NI, inputs = self._views(table, None)
        if not has_evidence(vectors_NI[:, inputs[0] : -1]).any():
            what = f"the vectors {self.behaviour_block!r} of all items are zeros"
            raise DataError(what, hint="behaviour needs training sequences")
        self.network_: MixtureNetwork = fit_mixture(
            self, vectors_NI, inputs, seed=seed, checkpoint=checkpoint, progress=progress
        )
        return self

    def encode(self, table: ItemTable) -> Ragged:
        """The code of every open expert; -1 for closed ones."""
        network = self._fitted()
        return networks.encode(network, self._views(table, network.inputs)[0])

    def decode(self, codes: Ragged) -> np.ndarray:
        """Content vectors of the decoded sums of centres, with each expert's typical gate."""
        return networks.decode(self._fitted(), codes)

    def centres(self) -> tuple[np.ndarray, ...]:
        """The experts' codebooks, which have the width of the experts, not of the vectors."""
        return tuple(book_KD.detach().numpy() for book_KD in self._fitted().books)

    def state(self) -> dict[str, np.ndarray]:
        """The network's arrays, and how much behaviour the known items have."""
        arrays = {f"network.{name}": tensor.numpy() for name, tensor in self._fitted().state_dict().items()}
        return {**arrays, "items": pack_strings(self.items_), "richness": self.richness_}

    def load_state(self, state: dict[str, np.ndarray]) -> Mixture:
        self.network_ = networks.load_network(self.experts, self.dim, below(state, "network."))
        self.items_, self.richness_ = Vocabulary(unpack_strings(state["items"])), state["richness"]
        return self

    def _views(self, table: ItemTable, inputs: tuple[int, int] | None) -> tuple[np.ndarray, tuple[int, int]]:
        """Both views and the richness side by side, and the views' widths; behaviour may be zeros."""
        content, behaviour = table.vectors(), table.vectors(self.behaviour_block)
        check_vectors(content, table.items, dim=inputs and inputs[0])
        check_vectors(behaviour, table.items, dim=inputs and inputs[1], allow_zero=True)
        row_N = self.items_.numbers(table.items, missing="negative")
        rich_N = np.where(row_N >= 0, self.richness_[row_N], 0)
        rows = np.concatenate([content, behaviour, rich_N[:, None]], axis=1, dtype=np.float32)
        return rows, (content.shape[1], behaviour.shape[1])

    def _fitted(self) -> MixtureNetwork:
        return fitted(getattr(self, "network_", None), self)
