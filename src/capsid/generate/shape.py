"""The shape of a Transformer over tokens as settings that generators hold, and what the ids add to it."""

from __future__ import annotations

from dataclasses import dataclass

from capsid.base.blocks.layers import BlockShape
from capsid.errors import ConfigError
from capsid.ids.histories import ReadableIds
from capsid.ids.merges import MergeTable
from capsid.settings import setting


@dataclass(kw_only=True)
class TransformerShape:
    """Sizes, dropout rates, and how tokens enter and are scored. A network reads these settings where they are.

    With a `cosine_temperature` above 0, tokens are scored by cosine, so that a popular token cannot win by a long
    vector; at 0 by inner product.
    """

    layers: int = setting(4, "Transformer layers.", least=1, most=1_000)
    heads: int = setting(4, "Attention heads per layer; the width must be a multiple of them.", least=1)
    width: int = setting(128, "Width of embeddings and hidden states.", least=1)
    feedforward: int = setting(512, "Width inside the feed-forward layers.", least=1)
    dropout: float = setting(0.2, "Dropout inside the layers.", least=0, most=0.99)
    embedding_dropout: float = setting(0.2, "Dropout of the input embeddings.", least=0, most=0.99)
    attention_dropout: float = setting(0.0, "Dropout of attention weights.", least=0, most=0.99)
    hidden_dropout: float = setting(0.0, "Dropout inside the feed-forward layers.", least=0, most=0.99)
    cosine_temperature: float = setting(
        0.0, "Tokens are scored by cosine divided by this; 0: by inner product.", least=0
    )
    input_scale: float = setting(1.0, "Token embeddings are multiplied by this at the input.", above=0)
    initial: str = setting(
        "small", "Spread of fresh weights: 0.02, or by the sizes of a matrix.", choices=("small", "xavier")
    )
    positions_from: str = setting(
        "start", "From which end of a history its positions are counted.", choices=("start", "end")
    )

    def blocks(self, positions: int) -> BlockShape:
        """The shape of a stack of blocks over so many positions."""
        return BlockShape(
            layers=self.layers,
            heads=self.heads,
            width=self.width,
            feedforward=self.feedforward,
            history=positions,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            hidden_dropout=self.hidden_dropout,
        )

    def check_sizes(self) -> None:
        """The width must be a multiple of the heads."""
        if self.width % self.heads:
            raise ConfigError(
                f"generator.width must be a multiple of generator.heads, got {self.width} and {self.heads}",
                hint=f"the nearest width is {max(1, round(self.width / self.heads)) * self.heads}",
            )


@dataclass(frozen=True)
class TokenSpace:
    """What ids fix of a network: how many tokens, depths and positions there are, and merges that compose vectors."""

    vocabulary: int
    depths: int
    positions: int
    merges: MergeTable | None = None

    @classmethod
    def of(cls, ids: ReadableIds, history: int, *, compose: bool = False) -> TokenSpace:
        """For histories of so many items."""
        layout = ids.layout
        merges = layout.merges if compose and len(layout.merges) else None
        return cls(layout.vocabulary, layout.depths + 1, history * ids.positions_per_item, merges)
