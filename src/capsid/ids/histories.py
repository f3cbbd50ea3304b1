"""Reads histories and lessons with the ids of a catalogue and all they carry: mixtures and other ids.

Works on any `ReadableIds`: those in memory (`capsid.ids.semantic_ids`) and those that a trie on disk holds
(`capsid.ids.mapped_ids`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np

from capsid.ids.mixtures import Mixtures
from capsid.ids.reading import ItemTokens, Lesson, Reading, TokenBatch
from capsid.ragged import Ragged


class ReadableIds(ItemTokens, Protocol):
    """Ids with which a fitted generator reads histories."""

    @property
    def reading(self) -> Reading:
        """How histories are segmented."""

    @property
    def mixtures(self) -> Mixtures | None:
        """Soft input, if there is any."""

    @property
    def systems(self) -> tuple[ItemTokens, ...]:
        """The id systems of the items, one or several; these ids are the first."""

    @property
    def positions_per_item(self) -> int:
        """At most this many positions of a batch are filled by one item."""

    def read(self, histories: Ragged, *, last: int, variant: int = 0) -> TokenBatch:
        """Network input for the last `last` items of every history (rows of item numbers); see `Reading.read`."""


def read_histories(ids: ReadableIds, histories: Ragged, *, last: int, variant: int = 0) -> TokenBatch:
    """Network input for the last `last` items of every history; see `Reading.read`."""
    batch = ids.reading.read(ids, histories, last=last, variant=variant)
    return _softened(ids, batch if len(ids.systems) == 1 else batch.seen_as(ids.prefix_free))


def read_lesson(ids: ReadableIds, pieces: Ragged, *, last: int, rng: np.random.Generator | None = None) -> Lesson:
    """Network input for pieces of sequences, and the items to predict in them."""
    lesson = ids.reading.lesson(ids, pieces, last=last, rng=rng)
    lesson = lesson if len(ids.systems) == 1 else lesson.seen_as(ids.prefix_free)
    if ids.mixtures is not None:
        lesson = replace(lesson, batch=_softened(ids, lesson.batch))
    return replace(lesson, others=tuple(lesson.seen_as(other.prefix_free) for other in ids.systems[1:]))


def _softened(ids: ReadableIds, batch: TokenBatch) -> TokenBatch:
    if ids.mixtures is None:
        return batch
    soft = ids.mixtures.corrections(ids.layout, batch.items.values, batch.own)
    if len(ids.systems) > 1:
        hard = sum(other.prefix_free.lengths_of(batch.items.values) for other in ids.systems[1:])
        soft = soft.followed(batch.own.lengths, np.asarray(hard))
    return replace(batch, soft=soft)
