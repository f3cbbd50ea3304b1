"""TIGER on text vectors only, as in its paper."""

from __future__ import annotations

import dataclasses

from capsid.encode.text import TextEncoder
from capsid.recipes.tiger import TIGER

TIGER_TEXT = dataclasses.replace(
    TIGER,
    name="tiger-text",
    about="Like tiger, but with text vectors only, unlike the other rows (marked in tables of shared input)",
    deviations=TIGER.deviations[1:],
    encoder=TextEncoder(),
)
