"""The encoder-decoder as the generator of a recipe: T5's network, fresh or with the weights of a saved T5."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from capsid.blocks.t5 import T5Shape
from capsid.errors import ConfigError
from capsid.generate.encoder_decoder_network import EncoderDecoder
from capsid.generate.generator import TransformerGenerator
from capsid.generate.t5_weights import load_t5
from capsid.ids.histories import ReadableIds
from capsid.ids.semantic_ids import SemanticIds
from capsid.settings import setting


@dataclass(kw_only=True)
class EncoderDecoderGenerator(TransformerGenerator):
    """T5 over item tokens, see `capsid.generate.encoder_decoder_network`; sizes as in TIGER (arXiv 2305.05065).

    `targets`: with `all`, the encoder is causal and every item of a sequence is a target of one pass. With `last`, it
    is bidirectional as in T5, and a sequence is cut at a random item, its only target in that step.
    """

    kind: ClassVar[str] = "encoder-decoder"
    layers: int = setting(4, "Layers of the encoder, over the tokens of the history.", least=1, most=1_000)
    depth_layers: int = setting(4, "Layers of the decoder, over the tokens of the next item.", least=1, most=1_000)
    heads: int = setting(6, "Attention heads per layer.", least=1)
    head_width: int = setting(64, "Width of an attention head.", least=1)
    feedforward: int = setting(1024, "Width inside the feed-forward layers.", least=1)
    activation: str = setting(
        "relu", "Inside the feed-forward layers: ReLU, or GELU times a projection.", choices=("relu", "gated-gelu")
    )
    dropout: float = setting(0.1, "Dropout inside the layers.", least=0, most=0.99)
    embedding_dropout: float = setting(0.1, "Dropout of the input embeddings.", least=0, most=0.99)
    hidden_dropout: float = setting(0.1, "Dropout inside the feed-forward layers.", least=0, most=0.99)
    buckets: int = setting(32, "Buckets of distances between tokens, each with a learnt number per head.", least=4)
    reach: int = setting(128, "Tokens that are further apart than this share one bucket.", least=2)
    targets: str = setting(
        "all",
        "Items of a sequence that are predicted in a step: all (causal encoder), or one at random (as T5 is trained).",
        choices=("all", "last"),
    )
    soft_input: int = setting(
        0,
        "History items are read as mixtures of this many of their strongest codes at each depth; 0: as hard codes.",
        least=0,
    )
    soft_sharpness: float = setting(
        1.0, "Power of the weights of these mixtures; above 1 the strongest code counts for more.", above=0
    )
    repeats: bool = setting(True, "Whether it learns how likely users are to return to an item of their history.")
    t5: str = setting("", "Folder of a T5 (config.json, model.safetensors) to start from; empty: fresh weights.")
    t5_tokens: bool = setting(True, "Whether its token embeddings are loaded too; false for a T5 over other tokens.")
    initial: str = setting(
        "t5", "Spread of fresh weights: T5's, 0.02, or by the sizes of a matrix.", choices=("t5", "small", "xavier")
    )
    positions_from: str = setting("start", "Positions are relative: there is no other choice.", choices=("start",))

    def build(self, ids: SemanticIds, counts: np.ndarray, *, seed: int, vectors: np.ndarray | None = None) -> Self:
        """Fresh weights, then those of the T5 where one is named."""
        super().build(ids, counts, seed=seed, vectors=vectors)
        if self.t5:
            settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
            assert isinstance(self.network_, EncoderDecoder)
            load_t5(self.network_, Path(self.t5), settings, tokens=self.t5_tokens)
        return self

    def _network(self, ids: ReadableIds) -> EncoderDecoder:
        shape = replace(self._shape(ids), repeats=self.repeats)
        t5 = T5Shape(
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
        return EncoderDecoder(
            shape, t5, self.depth_layers, causal=self.targets == "all", members=self._members(ids.layout)
        )

    def _check_sizes(self) -> None:
        if self.buckets % 2 or self.reach <= self.buckets // 2:
            raise ConfigError(
                "generator.buckets must be even, and generator.reach more than half of it, "
                f"got {self.buckets} and {self.reach}",
                hint="T5 has 32 and 128",
            )
