"""All readings by kind."""

from __future__ import annotations

from capsid.ids.in_context import InContext
from capsid.ids.reading import ItemByItem

READINGS: dict[str, type] = {r.kind: r for r in (ItemByItem, InContext)}
