"""The memory alone, without a network: followers and similar items of the last items, and popularity."""

from __future__ import annotations

import dataclasses

from capsid.encode.defaults import default_encoder
from capsid.memory.memory import Memory
from capsid.recipes.popularity import POPULARITY

MEMORY = dataclasses.replace(
    POPULARITY,
    name="memory",
    about="Items that followed the last items of a history, and items like them, by a handful of weights; no network",
    encoder=default_encoder(),
    memory=Memory(),
)
