"""The shape of T5's network as settings: an encoder over the history's tokens, a decoder over the next item's."""

from __future__ import annotations

from dataclasses import dataclass

from capsid.base.blocks.t5 import T5Shape
from capsid.errors import ConfigError
from capsid.settings import setting


@dataclass(kw_only=True)
class T5Settings:
    """Sizes as in TIGER (arXiv 2305.05065)."""

    layers: int = setting(4, "Layers of the encoder, over the tokens of the history.", least=1, most=1_000)
    depth_layers: int = setting(4, "Layers of the decoder, over the tokens of the next item.", least=1, most=1_000)
    heads: int = setting(6, "Attention heads per layer.", least=1)
    head_width: int = setting(64, "Width of an attention head.", least=1)
    width: int = setting(128, "Width of embeddings and hidden states.", least=1)
    feedforward: int = setting(1024, "Width inside the feed-forward layers.", least=1)
    activation: str = setting(
        "relu", "Inside the feed-forward layers: ReLU, or GELU times a projection.", choices=("relu", "gated-gelu")
    )
    dropout: float = setting(0.1, "Dropout inside the layers.", least=0, most=0.99)
    embedding_dropout: float = setting(0.1, "Dropout of the input embeddings.", least=0, most=0.99)
    attention_dropout: float = setting(0.0, "Dropout of attention weights.", least=0, most=0.99)
    hidden_dropout: float = setting(0.1, "Dropout inside the feed-forward layers.", least=0, most=0.99)
    buckets: int = setting(32, "Buckets of distances between tokens, each with a learnt number per head.", least=4)
    reach: int = setting(128, "Tokens that are further apart than this share one bucket.", least=2)
    cosine_temperature: float = setting(
        0.0, "Tokens are scored by cosine divided by this; 0: by inner product.", least=0
    )
    input_scale: float = setting(1.0, "Token embeddings are multiplied by this at the input.", above=0)
    initial: str = setting(
        "t5", "Spread of fresh weights: T5's, 0.02, or by the sizes of a matrix.", choices=("t5", "small", "xavier")
    )

    def blocks(self) -> T5Shape:
        """The shape of the layers."""
        return T5Shape(
            width=self.width,
            heads=self.heads,
            head_width=self.head_width,
            feedforward=self.feedforward,
            gated=self.activation == "gated-gelu",
            buckets=self.buckets,
            reach=self.reach,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            hidden_dropout=self.hidden_dropout,
        )

    def check_sizes(self) -> None:
        """Buckets and reach depend on each other."""
        if self.buckets % 2 or self.reach <= self.buckets // 2:
            raise ConfigError(
                "generator.buckets must be even, and generator.reach more than half of it, "
                f"got {self.buckets} and {self.reach}",
                hint="T5 has 32 and 128",
            )
