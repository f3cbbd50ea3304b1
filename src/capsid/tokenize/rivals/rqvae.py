"""The RQ-VAE tokenizer of TIGER (Rajput et al. 2023, arXiv 2305.05065, section 3.1): item vectors to L codes each.

The collision policy, not the tokenizer, adds a suffix to colliding items. With `crowd` ids have varying lengths; the
prefixes that are shared too often are counted once, at fit (SA2CRQ, Wang et al. 2026, arXiv 2602.23978). Training is
imported on demand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from capsid.base.run_options import CheckpointFile
from capsid.data.item_table import ItemTable
from capsid.encode.base import check_vectors, fitted, require_items
from capsid.errors import ConfigError
from capsid.ids.collisions import Costs
from capsid.ids.order import SharedPrefixes, unshared_lengths
from capsid.progress import Progress, silent
from capsid.ragged import Ragged
from capsid.tokenize.kmeans import nearby_codes
from capsid.tokenize.rivals import rqvae_network as networks
from capsid.tokenize.rivals.rqvae_network import JointRQVAE, RQVAENetwork
from capsid.tokenize.rivals.rqvae_terms import SHORTEST, RQVAESettings


@dataclass(kw_only=True)
class RQVAE(RQVAESettings):
    """The settings, and after `fit` the network."""

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(book) for book in self._fitted().books)

    def fit(
        self, table: ItemTable, *, seed: int = 0, progress: Progress = silent, checkpoint: CheckpointFile | None = None
    ) -> RQVAE:
        """Train on the table's vectors, which may be a mapped file larger than memory."""
        from capsid.tokenize.rivals.rqvae_fit import fit_stages

        require_items(table)
        check_vectors(table.vectors(self.block), table.items)
        self.network_, self.shared_prefixes_ = fit_stages(
            self, table, seed=seed, checkpoint=checkpoint, progress=progress
        )
        return self

    def encode(self, table: ItemTable) -> Ragged:
        """Nearest code of the latent, then of its residual, depth by depth, until the id ends."""
        network, vectors = self._fitted(), table.vectors(self.block)
        check_vectors(vectors, table.items, dim=network.inputs)
        return self._cut(networks.encode(network, vectors))

    def assign_catalogue(self, table: ItemTable) -> Ragged:
        """Balanced codes over the whole catalogue if the settings ask for them, nearest codes otherwise."""
        if self.assign is None or not self.assign.catalogue:
            return self.encode(table)
        return self._cut(networks.balanced_codes(self._fitted(), self.latents(table.vectors(self.block)), self.assign))

    def latents(self, vectors_NI: np.ndarray) -> np.ndarray:
        return networks.latents(self._fitted(), vectors_NI)

    def with_books(self, books: Sequence[np.ndarray]) -> RQVAE:
        """A copy with other codebooks and the same encoder and decoder."""
        state = {**self.state(), **{f"books.{depth}": book for depth, book in enumerate(books)}}
        return replace(self).load_state(state)

    def strongest_codes(self, table: ItemTable, strongest: int) -> tuple[np.ndarray, np.ndarray]:
        """The nearest codes of every item at every depth, weighted by distance in latent space."""
        return nearby_codes(self.latents(table.vectors(self.block)), self.centres(), strongest)

    def joint_network(self) -> JointRQVAE:
        if self.crowd:
            raise ConfigError(
                "ids of varying length (tokenizer.crowd) cannot be trained with a generator",
                hint="set tokenizer.crowd=0",
            )
        return JointRQVAE(self._fitted())

    def with_network(self, network: nn.Module) -> RQVAE:
        """A copy with the weights of a joint network."""
        return replace(self).load_state({name: t.numpy().copy() for name, t in network.state_dict().items()})

    def last_costs(self, table: ItemTable, codes: Ragged) -> Costs:
        """Squared distances, in latent space, from the residuals of the earlier depths to an id's last codebook."""
        network, vectors = self._fitted(), table.vectors(self.block)
        return lambda rows: networks.last_distances(network, np.asarray(vectors[rows]), codes.take(rows))

    def decode(self, codes: Ragged) -> np.ndarray:
        return networks.decode(self._fitted(), codes)

    def centres(self) -> tuple[np.ndarray, ...]:
        return tuple(book.detach().numpy() for book in self._fitted().books)

    def state(self) -> dict[str, np.ndarray]:
        """The network's arrays, and with `crowd` the prefixes that are shared too often."""
        arrays = {name: tensor.numpy() for name, tensor in self._fitted().state_dict().items()}
        shared = {f"shared/{d}": keys for d, keys in enumerate(self.shared_prefixes_.keys)} if self.crowd else {}
        return {**arrays, **shared}

    def load_state(self, state: dict[str, np.ndarray]) -> RQVAE:
        network = {name: array for name, array in state.items() if not name.startswith("shared/")}
        self.network_ = networks.load_network(self.hidden, self.latent, network)
        self.shared_prefixes_ = SharedPrefixes.none(self.sizes)
        if self.crowd:
            keys = tuple(state[f"shared/{d}"] for d in range(len(self.sizes)))
            self.shared_prefixes_ = SharedPrefixes(self.sizes, keys)
        return self

    def _lengths(self, codes_NL: np.ndarray) -> np.ndarray:
        """Where ids with these codes end. Shape: (items,)."""
        if not self.crowd:
            return np.full(len(codes_NL), codes_NL.shape[1])
        return unshared_lengths(codes_NL, self.shared_prefixes_, SHORTEST)

    def _cut(self, codes: Ragged) -> Ragged:
        if not self.crowd or not len(codes):
            return codes
        return Ragged.from_dense(codes.dense(), self._lengths(codes.dense()))

    def _fitted(self) -> RQVAENetwork:
        return fitted(getattr(self, "network_", None), self)
