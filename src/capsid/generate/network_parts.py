"""The two calls of the timeline network, start and step, as modules of plain tensors, for exporters.

Items enter as padded tokens and caches are stacked over layers, so there are no ragged arrays. What the search adds to
the scores of known items (`repeats`) is left to the caller. Shapes as in
`capsid.generate.timeline`; G layers over depth.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsid.base.blocks.layers import Block, Cache
from capsid.errors import ConfigError
from capsid.generate.generator import Trainable
from capsid.generate.timeline import TimelineTransformer
from capsid.ids.layout import PAD


class _Part(nn.Module):
    enter_VD: Tensor
    score_VS: Tensor

    def __init__(self, network: TimelineTransformer) -> None:
        super().__init__()
        self.network = network
        vectors = network.token.vectors()
        self.register_buffer("enter_VD", vectors.enter_VD.detach().clone())
        self.register_buffer("score_VS", vectors.score_VS.detach().clone())

    def _scores(self, rows: Tensor) -> Tensor:
        return F.linear(self.network.norm(rows), self.score_VS)


class Start(_Part):
    """Reads histories: tokens of their items (0 pads items and histories), and how many items each has."""

    def forward(self, tokens_UPT: Tensor, items_U: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores of all first tokens (U, V), and keys and values of the layers over depth (G, U, H, 1, K)."""
        real_UPT1 = (tokens_UPT != PAD)[..., None].to(self.enter_VD.dtype)
        x_UPD = (F.embedding(tokens_UPT, self.enter_VD) * real_UPT1).sum(2) * self.network.shape.input_scale
        for block in self.network.blocks:
            x_UPD, _ = block(x_UPD)
        last_U1D = (items_U - 1)[:, None, None].expand(-1, 1, x_UPD.shape[-1])
        x_U1D = x_UPD.gather(1, last_U1D)
        keys, values = [], []
        for block in self.network.depth_blocks:
            x_U1D, cache = block(x_U1D)
            keys.append(cache.keys_UHLK)
            values.append(cache.values_UHLK)
        return self._scores(x_U1D[:, 0]), torch.stack(keys), torch.stack(values)


class Step(_Part):
    """Appends a token to every beam. `depth` is the number of tokens before it; own keys have that many positions."""

    def forward(
        self,
        keys_GUHLK: Tensor,
        values_GUHLK: Tensor,
        own_keys_GUWTHK: Tensor,
        own_values_GUWTHK: Tensor,
        parents_UW: Tensor,
        tokens_UW: Tensor,
        depth: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Scores of all next tokens (U, W, V), and the beams' keys and values with one more position."""
        x_UWD = F.embedding(tokens_UW, self.enter_VD) * self.network.shape.input_scale + self.network.depth(depth)
        padding_UL = torch.zeros(keys_GUHLK.shape[1], 1, dtype=torch.bool)
        keys, values = [], []
        for layer, block in enumerate(self.network.depth_blocks):
            assert isinstance(block, Block)
            old = Cache(keys_GUHLK[layer], values_GUHLK[layer], own_keys_GUWTHK[layer], own_values_GUWTHK[layer])
            x_UWD, cache = block.step(x_UWD, old, parents_UW, padding_UL)
            assert cache.own_keys_UWTHK is not None
            assert cache.own_values_UWTHK is not None
            keys.append(cache.own_keys_UWTHK)
            values.append(cache.own_values_UWTHK)
        return self._scores(x_UWD), torch.stack(keys), torch.stack(values)


def parts(generator: object) -> tuple[Start, Step]:
    """Both calls of a fitted generator; an error if it reads something that these modules do not take."""
    kind = getattr(generator, "kind", type(generator).__name__)
    network = generator.network if isinstance(generator, Trainable) else None
    if not isinstance(network, TimelineTransformer):
        raise ConfigError(f"the generator {kind!r} cannot be exported", hint="fit with generator=timeline")
    without_places = "mixing or distances"
    for name, wanted, found in (
        ("soft_input", 0, getattr(generator, "soft_input", 0)),
        ("reads", without_places, without_places if network.place is None else getattr(generator, "reads", "places")),
    ):
        if found != wanted:
            raise ConfigError(
                f"generator.{name} must be {wanted} to export a run, got {found}",
                hint=f"fit with --set generator.{name}={str(wanted).split()[0]}",
            )
    network.eval()
    return Start(network).eval(), Step(network).eval()
