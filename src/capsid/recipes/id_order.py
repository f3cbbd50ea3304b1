"""The memory with one more weight, for the order of item ids: a probe of a dataset, not a method."""

from __future__ import annotations

import dataclasses

from capsid.memory.memory import Memory
from capsid.recipes.memory import MEMORY

ID_ORDER = dataclasses.replace(
    MEMORY,
    name="id-order",
    about="A probe, not a method: the memory, with one more weight for items whose ids sort after the last item's",
    memory=Memory(id_order=True),
)
