"""EASE with a memory of followers and similar items: what `capsid fit` fits if no recipe is named."""

from __future__ import annotations

import dataclasses

from capsid.encode.defaults import default_encoder
from capsid.generate.similar_items import EaseGenerator
from capsid.memory.memory import Memory
from capsid.recipes.ease import EASE

EASE_MEMORY = dataclasses.replace(
    EASE,
    name="ease-memory",
    about="Linear weights between items in closed form, and a memory of followers and similar items; no network",
    encoder=default_encoder(),
    # The decay is the one that validates best in the plan `clean`.
    generator=EaseGenerator(decay=0.7),
    memory=Memory(),
)
