"""The encoder-decoder as the generator of a recipe: T5's network, fresh or with the weights of a saved T5.

Weights are those of a T5 that transformers has saved: config.json and safetensors files. Sizes are compared with the
settings before anything is read, nothing is unpickled and no code of the folder is run. Does not need transformers.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from capsid.base.storage.untrusted import interpreting
from capsid.errors import ArtifactError, ConfigError
from capsid.generate.encoder_decoder_network import EncoderDecoder, T5Settings
from capsid.generate.generator import ReadsSoftly, TiedGenerator
from capsid.generate.shape import TokenSpace
from capsid.ids.reading import ReadableIds
from capsid.ids.semantic_ids import SemanticIds
from capsid.settings import setting

CONFIG, WHOLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
# These differ in their data and tokens, not in their layers.
FAMILIES = ("t5", "mt5")
ACTIVATIONS = {"relu": "relu", "gated-gelu": "gated-gelu"}
# The name of a size in config.json, its setting, and its value where config.json does not say.
SIZES = (
    ("d_model", "width", 512),
    ("num_layers", "layers", 6),
    ("num_decoder_layers", "depth_layers", None),
    ("num_heads", "heads", 8),
    ("d_kv", "head_width", 64),
    ("d_ff", "feedforward", 2048),
    ("relative_attention_num_buckets", "buckets", 32),
    ("relative_attention_max_distance", "reach", 128),
)


def load_t5(network: EncoderDecoder, folder: Path, settings: Mapping[str, Any], *, tokens: bool) -> None:
    """Copy the weights into the network; `tokens`: also the token embeddings. `settings` are those of the generator,
    for messages that say what to set."""
    saved = _Saved.open(folder)
    _check_sizes(saved, settings)
    if tokens:
        _check_tokens(saved, network.space.vocabulary)
    with torch.no_grad():
        for name, theirs in _names(network, tokens=tokens):
            parameter = network.get_parameter(name)
            parts = parameter.shape[0] // len(theirs), *parameter.shape[1:]
            parameter.copy_(torch.cat([saved.tensor(their, parts) for their in theirs]))
        if tokens:
            # The vector of a merged token may be composed; its own row is what the composition leaves to be said.
            composed, wanted_VD = network.token.composed, network.token.weight.clone()
            network.token.weight[composed] = 0.0
            network.token.weight[composed] = (wanted_VD - network.embed())[composed]


@dataclass(frozen=True, eq=False)
class _Saved:
    """A folder of transformers: its configuration, and the file of every tensor."""

    folder: Path
    config: dict[str, Any]
    files: dict[str, str]

    @classmethod
    def open(cls, folder: Path) -> _Saved:
        if not (folder / CONFIG).is_file():
            raise ArtifactError(
                f"{folder} has no {CONFIG}", hint="give the folder that save_pretrained of transformers has written"
            )
        with interpreting(folder / CONFIG, "configuration"):
            config = dict(json.loads((folder / CONFIG).read_text("utf-8")))
        if (folder / INDEX).is_file():
            with interpreting(folder / INDEX, "index of weights"):
                files = dict(json.loads((folder / INDEX).read_text("utf-8"))["weight_map"])
                # A file of the index must not lead out of the folder.
                files = {str(name): Path(file).name for name, file in files.items()}
        elif (folder / WHOLE).is_file():
            with interpreting(folder / WHOLE, "file of weights"), safe_open(folder / WHOLE, framework="pt") as opened:
                files = dict.fromkeys(opened.keys(), WHOLE)
        else:
            raise ArtifactError(
                f"{folder} has no {WHOLE}",
                hint="weights in pickle files (.bin) are not read; save them with safe_serialization=True",
            )
        return cls(folder, config, files)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor of this shape as float32."""
        if name not in self.files:
            raise ArtifactError(f"{self.folder} has no weights {name}", hint="give a whole T5, encoder and decoder")
        file = self.folder / self.files[name]
        with interpreting(file, "file of weights"), safe_open(file, framework="pt") as opened:
            found = tuple(opened.get_slice(name).get_shape())
            if found != shape:
                raise ArtifactError(
                    f"{name} has the shape {_text(found)} in {file.name}, but {CONFIG} says {_text(shape)}",
                    hint="the files belong to different models; copy the folder again from its source",
                )
            tensor = opened.get_tensor(name).to(torch.float32)
        if not torch.isfinite(tensor).all():
            raise ArtifactError(f"the weights {name} are not all finite numbers", hint="copy the folder again")
        return tensor


def _check_sizes(saved: _Saved, settings: Mapping[str, Any]) -> None:
    """The T5 must have the sizes that the settings ask for."""
    config = saved.config
    if config.get("model_type") not in FAMILIES:
        raise ConfigError(
            f"{saved.folder} holds a model of type {config.get('model_type')!s:.40}, not one of {', '.join(FAMILIES)}",
            hint="give the folder of a T5",
        )
    activation = config.get("feed_forward_proj", "relu")
    if activation not in ACTIVATIONS:
        raise ConfigError(
            f"feed_forward_proj in {CONFIG} must be one of {', '.join(ACTIVATIONS)}, got {activation!r:.40}",
            hint="give a T5 with one of these activations",
        )
    theirs = {ours: config.get(name, default) for name, ours, default in SIZES}
    theirs["depth_layers"] = theirs["layers"] if theirs["depth_layers"] is None else theirs["depth_layers"]
    theirs["activation"] = ACTIVATIONS[activation]
    other = {name: value for name, value in theirs.items() if settings[name] != value}
    if other:
        told = ", ".join(f"generator.{name} is {settings[name]} and must be {value}" for name, value in other.items())
        hint = " ".join(f"--set generator.{name}={value}" for name, value in other.items())
        raise ConfigError(f"the T5 in {saved.folder} has other sizes: {told}", hint=hint)


def _check_tokens(saved: _Saved, vocabulary: int) -> None:
    """Its tokens must be ours, and its scores tied to them."""
    hint = "set generator.t5_tokens=false to start with its layers and fresh token embeddings"
    theirs = saved.config.get("vocab_size")
    if theirs != vocabulary:
        raise ConfigError(f"the T5 in {saved.folder} has {theirs} tokens, these ids have {vocabulary:,}", hint=hint)
    scaled = saved.config.get("scale_decoder_outputs", saved.config.get("tie_word_embeddings", True))
    if not scaled or "lm_head.weight" in saved.files:
        raise ConfigError(f"the scores of the T5 in {saved.folder} are not tied to its token embeddings", hint=hint)


def _names(network: EncoderDecoder, *, tokens: bool) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every parameter that is loaded, and the tensors that it consists of, in order."""
    if tokens:
        yield "token.weight", ("shared.weight",)
    yield "encoder_norm.weight", ("encoder.final_layer_norm.weight",)
    yield "norm.weight", ("decoder.final_layer_norm.weight",)
    for stack in ("encoder", "decoder"):
        first = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        yield f"{stack}_positions.weight", (first,)
        for number, block in enumerate(network.get_submodule(stack).children()):
            ours, theirs = f"{stack}.{number}", f"{stack}.block.{number}.layer"
            own = f"{theirs}.0.SelfAttention"
            yield f"{ours}.qkv.weight", tuple(f"{own}.{part}.weight" for part in "qkv")
            yield f"{ours}.out.weight", (f"{own}.o.weight",)
            yield f"{ours}.norm_attention.weight", (f"{theirs}.0.layer_norm.weight",)
            last = 1
            if stack == "decoder":
                cross, last = f"{theirs}.1.EncDecAttention", 2
                yield f"{ours}.query.weight", (f"{cross}.q.weight",)
                yield f"{ours}.key_value.weight", (f"{cross}.k.weight", f"{cross}.v.weight")
                yield f"{ours}.cross_out.weight", (f"{cross}.o.weight",)
                yield f"{ours}.norm_cross.weight", (f"{theirs}.1.layer_norm.weight",)
            forward, up = f"{theirs}.{last}.DenseReluDense", "wi"
            if block.get_submodule("feedforward").gate is not None:
                up = "wi_1"
                yield f"{ours}.feedforward.gate.weight", (f"{forward}.wi_0.weight",)
            yield f"{ours}.feedforward.up.weight", (f"{forward}.{up}.weight",)
            yield f"{ours}.feedforward.down.weight", (f"{forward}.wo.weight",)
            yield f"{ours}.feedforward.norm.weight", (f"{theirs}.{last}.layer_norm.weight",)


def _text(shape: tuple[int, ...]) -> str:
    return " x ".join(f"{size:,}" for size in shape)


@dataclass(kw_only=True)
class EncoderDecoderGenerator(ReadsSoftly, T5Settings):
    """T5 over item tokens, see `capsid.generate.encoder_decoder_network`. `targets`: with `all`, the encoder is causal
    and every item of a sequence is a target of one pass. With `last`, it is bidirectional as in T5, and a sequence is
    cut at a random item, its only target in that step."""

    kind: ClassVar[str] = "encoder-decoder"
    dropped: ClassVar[dict[str, str]] = {**TiedGenerator.dropped, "positions_from": "positions are relative"}
    targets: str = setting(
        "all",
        "Items of a sequence that are predicted in a step: all (causal encoder), or one at random (as T5 is trained).",
        choices=("all", "last"),
    )
    t5: str = setting("", "Folder of a T5 (config.json, model.safetensors) to start from; empty: fresh weights.")
    t5_tokens: bool = setting(True, "Whether its token embeddings are loaded too; false for a T5 over other tokens.")

    def check_together(self) -> None:
        self.check_sizes()

    def make(self, ids: ReadableIds) -> EncoderDecoder:
        space = TokenSpace.of(ids, self.history, compose=self.compose)
        return EncoderDecoder(self, space, causal=self.targets == "all", repeats=self.repeats)

    def begin(self, ids: SemanticIds, vectors: np.ndarray | None, seed: int) -> None:
        """Warm token embeddings, then the weights of the T5 where one is named."""
        super().begin(ids, vectors, seed)
        if self.t5:
            settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
            assert isinstance(self.network_, EncoderDecoder)
            load_t5(self.network_, Path(self.t5), settings, tokens=self.t5_tokens)
