"""The RQ-VAE's network while it is trained together with a generator: scores of codes by depth, reconstructions, its
own loss.

Codes are the nearest ones. Knows neither items nor generators. Shapes: U items, I width of vectors, C of latents, K
codes.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from capsid.tokenize.base import JointReading
from capsid.tokenize.rqvae.network import RQVAENetwork, squared_distances


class JointRQVAE(RQVAENetwork):
    """A copy of a network, with weights of the same names, all of which learn."""

    def __init__(self, network: RQVAENetwork, commitment: float) -> None:
        super().__init__(network.inputs, network.hidden, network.latent, [len(book_KC) for book_KC in network.books])
        self.load_state_dict(network.state_dict())
        self.commitment = commitment

    def scores(self, z_UC: Tensor) -> list[Tensor]:
        """Minus the squared distances of latents, then of their residuals, to all codes by depth."""
        return self._scores(self.quantize(z_UC).residuals_LBD)

    def read(self, x_UI: Tensor) -> JointReading:
        """How item vectors are encoded, quantised and reconstructed; reconstructions are standardised vectors."""
        entered_UI = self.enter(x_UI)
        found = self.quantize(self.encoder(entered_UI))
        loss = self.loss_of(entered_UI, found, self.commitment)
        return JointReading(self._scores(found.residuals_LBD), self.decoder(found.through_BD), loss)

    def _scores(self, residuals_LUC: Sequence[Tensor]) -> list[Tensor]:
        return [-squared_distances(left_UC, book_KC) for left_UC, book_KC in zip(residuals_LUC, self.books)]
