"""Every recipe in a size that learns a planted world in a second or two."""

from __future__ import annotations

import dataclasses
from functools import cache

from capsid.data.dataset import Dataset
from capsid.data.fields import Field
from capsid.data.planted import planted_dataset
from capsid.encode.joined import Views
from capsid.encode.sequence import FieldEncoder, SequenceEncoder
from capsid.encode.text import HashingEncoder
from capsid.recipe import Recipe
from capsid.recipes import RECIPES
from capsid.train.options import Training

SMALL = {
    "generator.layers": "1",
    "generator.heads": "2",
    "generator.width": "32",
    "generator.feedforward": "64",
    "generator.dropout": "0.0",
    "generator.embedding_dropout": "0.1",
    "generator.attention_dropout": "0.0",
    "generator.hidden_dropout": "0.0",
    "generator.history": "8",
    "decoder.width": "20",
}
# Recipes with another generator, which keep all promises of a recipe: ids of several lengths, suffixes, dense vectors.
VARIANTS = {
    "capsid with an encoder-decoder": ("capsid", ("generator=encoder-decoder", "over=children")),
    "tiger with T5": ("tiger", ("generator=encoder-decoder", "generator.targets=last")),
    "capsid-dense with an encoder-decoder": ("capsid-dense", ("generator=encoder-decoder",)),
}
TRAINING = {"batch_size": "32", "learning_rate": "0.01", "ema": "0.9"}


@cache
def world() -> Dataset:
    """72 items; who took one takes the next under the same branch, nine times out of ten."""
    return planted_dataset(branching=(4, 3, 2), items_per_leaf=3, users=150, length=9)


@cache
def tiny_world() -> Dataset:
    return planted_dataset(branching=(3, 2), items_per_leaf=2, users=20, length=6)


def _small_encoder(encoder: object) -> FieldEncoder | HashingEncoder | SequenceEncoder | Views:
    """Text vectors without a language model; other views as small as the latent of a small tokenizer."""
    text, few = HashingEncoder(dim=24), Training(steps=10, batch_size=32)
    if isinstance(encoder, SequenceEncoder):
        return dataclasses.replace(encoder, dim=8, training=few)
    if isinstance(encoder, FieldEncoder):
        fields = (Field(column="categories", level=0, least=1), Field(column="categories", level=1, least=1))
        return FieldEncoder(fields=fields, dim=8, training=few)
    if not isinstance(encoder, Views):
        return text
    return Views(item=text, others=tuple((n, SequenceEncoder(dim=8, training=few)) for n, _ in encoder.others))


def small(name: str, steps: int = 60) -> Recipe:
    """The recipe with small parts; text vectors without a language model."""
    name, settings = VARIANTS.get(name, (name, ()))
    recipe = RECIPES[name].with_settings(settings)
    if recipe.encoder is not None:
        recipe = dataclasses.replace(recipe, encoder=_small_encoder(recipe.encoder))
    if hasattr(recipe.tokenizer, "inner"):
        inner = ["codebooks=8,8,8", "restarts=1"]
        fields = ["0.level=0", "1.level=1", "0.least=1", "1.least=1"]
        recipe = recipe.with_settings(f"tokenizer.inner.{text}" for text in inner)
        recipe = recipe.with_settings(f"tokenizer.fields.{text}" for text in fields)
    if hasattr(recipe.tokenizer, "codebooks"):
        flat = len(recipe.tokenizer.codebooks) == 1
        recipe = recipe.with_settings(["tokenizer.codebooks=24" if flat else "tokenizer.codebooks=8,8,8"])
    if hasattr(recipe.tokenizer, "branching"):
        recipe = recipe.with_settings(["tokenizer.branching=4,4"])
    if hasattr(recipe.tokenizer, "hidden"):
        recipe = recipe.with_settings(["tokenizer.hidden=32,16", "tokenizer.latent=8"])
    if hasattr(recipe.tokenizer, "codebook"):
        recipe = recipe.with_settings(["tokenizer.codebook=8"])
    if hasattr(recipe.tokenizer, "restarts"):
        recipe = recipe.with_settings(["tokenizer.restarts=1"])
    if hasattr(recipe.tokenizer, "training") and recipe.tokenizer.training.steps:  # Capsules may train nothing.
        small = {"steps": "12", "batch_size": "32", "validate_every": "6"}
        recipe = recipe.with_settings(f"tokenizer.training.{f}={v}" for f, v in small.items())
    if recipe.other_ids:
        recipe = recipe.with_settings(["other_ids.0.tokenizer.codebooks=24"])
    if recipe.merges is not None:
        few = {"size": "12"}
        if hasattr(recipe.merges, "training"):
            few |= {"min_count": "5", "theta": "0.5,0.0", "training.steps": "40"}
        recipe = recipe.with_settings(f"merges.{f}={v}" for f, v in few.items())
    if hasattr(recipe.generator, "layers"):
        searches = recipe.decoder.kind != "parallel-scoring"
        known = {path: value for path, value in SMALL.items() if searches or not path.startswith("decoder.")}
        recipe = recipe.with_settings(f"{path}={value}" for path, value in known.items())
    if hasattr(recipe.generator, "head_width"):
        recipe = recipe.with_settings(["generator.head_width=16", "generator.depth_layers=1"])
    for number, term in enumerate(recipe.objective):
        if hasattr(term, "dim"):
            recipe = recipe.with_settings([f"objective.{number}.hidden=24", f"objective.{number}.dim=16"])
    for number in range(len(recipe.schedule)):
        wanted = {**TRAINING, "steps": str(steps), "validate_every": str(max(1, steps // 2))}
        recipe = recipe.with_settings(f"schedule.{number}.training.{f}={v}" for f, v in wanted.items())
        if hasattr(recipe.schedule[number].adapt, "training"):
            few = {"batch_size": "32", "steps": str(max(2, steps // 4))}
            recipe = recipe.with_settings(f"schedule.{number}.adapt.training.{f}={v}" for f, v in few.items())
    return recipe
