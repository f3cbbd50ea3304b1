"""TIGER on vectors of the items' text alone, as in its paper."""

from __future__ import annotations

import dataclasses

from capsid.encode.text import TextEncoder
from capsid.recipes.tiger import TIGER

TIGER_TEXT = dataclasses.replace(
    TIGER,
    name="tiger-text",
    about="As tiger, from text alone: no other row's vectors (marked in tables of shared input)",
    deviations=TIGER.deviations[1:],
    encoder=TextEncoder(),
)
