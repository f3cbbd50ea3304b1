"""Merged CapsID ids with the generator settings and the memory that rank best on Beauty: the row to beat with ids."""

from __future__ import annotations

import dataclasses

from capsid.generate.generator import TimelineGenerator
from capsid.memory.memory import Memory
from capsid.recipe import Phase
from capsid.recipes.capsid_bpe import CAPSID_BPE
from capsid.recipes.long_training import LONG_TRAINING

CAPSID_STRONG = dataclasses.replace(
    CAPSID_BPE,
    name="capsid-strong",
    about="Like capsid-bpe, with a small generator that trains longer, and a memory of followers and similar items",
    deviations=(
        *CAPSID_BPE.deviations,
        "every merged token has a vector of its own only, and scores are inner products",
        "tokens compete with their siblings in the trie alone (over=children)",
        "followers and neighbours of the last items get bonuses, fitted after training (off: memory=null)",
    ),
    over="children",
    generator=TimelineGenerator(
        width=64,
        feedforward=256,
        dropout=0.6,
        embedding_dropout=0.6,
        hidden_dropout=0.6,
        compose=False,
        cosine_temperature=0.0,
        input_scale=8.0,
    ),
    memory=Memory(),
    schedule=(Phase(training=dataclasses.replace(LONG_TRAINING, steps=5_280, equal_targets=True)),),
)
