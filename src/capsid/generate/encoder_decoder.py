"""The encoder-decoder as the generator of a recipe: T5's network, fresh or with the weights of a saved T5."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from capsid.generate.encoder_decoder_network import EncoderDecoder
from capsid.generate.generator import TiedGenerator
from capsid.generate.shape import TokenSpace
from capsid.generate.t5_settings import T5Settings
from capsid.generate.t5_weights import load_t5
from capsid.ids.histories import ReadableIds
from capsid.ids.semantic_ids import SemanticIds
from capsid.settings import setting


@dataclass(kw_only=True)
class EncoderDecoderGenerator(TiedGenerator, T5Settings):
    """T5 over item tokens, see `capsid.generate.encoder_decoder_network`.

    `targets`: with `all`, the encoder is causal and every item of a sequence is a target of one pass. With `last`, it
    is bidirectional as in T5, and a sequence is cut at a random item, its only target in that step.
    """

    kind: ClassVar[str] = "encoder-decoder"
    dropped: ClassVar[dict[str, str]] = {**TiedGenerator.dropped, "positions_from": "positions are relative"}
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

    def check_together(self) -> None:
        """Sizes that depend on each other: see `capsid.settings.check_together`."""
        self.check_sizes()

    def make(self, ids: ReadableIds) -> EncoderDecoder:
        """See `NetworkGenerator`."""
        space = TokenSpace.of(ids, self.history, compose=self.compose)
        return EncoderDecoder(self, space, causal=self.targets == "all", repeats=self.repeats)

    def begin(self, ids: SemanticIds, vectors: np.ndarray | None, seed: int) -> None:
        """Warm token embeddings, then the weights of the T5 where one is named."""
        super().begin(ids, vectors, seed)
        if self.t5:
            settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
            assert isinstance(self.network_, EncoderDecoder)
            load_t5(self.network_, Path(self.t5), settings, tokens=self.t5_tokens)
