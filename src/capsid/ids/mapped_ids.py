"""The ids of a stored run, to read histories with, while the catalogue stays on disk.

Tokens are looked up in the run's mapped trie; mixtures are mapped arrays. Item ids and codes are not
read at all. For workers of a process that has checked the run (`capsid.ids.semantic_ids` reads and checks it).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from capsid.base.config import Kinds
from capsid.base.storage import untrusted
from capsid.base.storage.arrays import map_arrays
from capsid.base.storage.artifacts import read_json
from capsid.ids.histories import read_histories
from capsid.ids.id_rows import ARRAYS
from capsid.ids.item_tokens import Beside, ItemRows, TrieRows, Unmerged
from capsid.ids.layout import TokenLayout
from capsid.ids.mixtures import Mixtures
from capsid.ids.reading import Reading, TokenBatch
from capsid.ids.stored_parts import layout_of, mixtures_of, reading_of
from capsid.ids.trie import Trie
from capsid.ragged import Ragged


@dataclass(frozen=True, eq=False)
class MappedIds:
    """What reading histories needs, as in `SemanticIds`."""

    layout: TokenLayout
    trie: Trie
    reading: Reading
    mixtures: Mixtures | None = None
    others: tuple[MappedIds, ...] = ()

    @classmethod
    def open(cls, folder: Path, trie: Trie, kinds: Kinds | None = None) -> MappedIds:
        """The ids that `SemanticIds.save` wrote to `folder`, without other ids; `trie` is the trie of them."""
        arrays = map_arrays(folder / ARRAYS, lambda name: "/" in name)
        with untrusted.interpreting(folder / ARRAYS, "file of ids"):
            about = untrusted.mapping(read_json(folder / "ids.json"), "ids.json")
            layout, n = layout_of(about, arrays, len(trie)), len(trie)
            soft = mixtures_of(arrays, layout, n, checked=True)
            return cls(layout, trie, reading_of(about, kinds), soft)

    def with_other(self, other: MappedIds) -> MappedIds:
        """The same ids with one more id of every item."""
        layout = replace(self.layout, others=(*self.layout.others, other.layout))
        return replace(self, layout=layout, others=(*self.others, other))

    @property
    def systems(self) -> tuple[MappedIds, ...]:
        """The id systems of the items; these ids are the first."""
        return (self, *self.others)

    @property
    def prefix_free(self) -> ItemRows:
        """Merged tokens; no row is a prefix of another."""
        return TrieRows(self.trie)

    @property
    def entering(self) -> ItemRows:
        """The tokens that an item of a history is read as, where it is read by itself: those of all its ids."""
        return Beside(tuple(ids.prefix_free for ids in self.systems)) if self.others else self.prefix_free

    @property
    def unmerged(self) -> ItemRows:
        """Tokens before merging."""
        return Unmerged(self.prefix_free, self.layout)

    @property
    def positions_per_item(self) -> int:
        """At most this many positions of a batch are filled by one item."""
        return self.reading.positions_per_item(self.layout)

    def read(self, histories: Ragged, *, last: int, variant: int = 0) -> TokenBatch:
        """Network input for the last `last` items of every history (rows of item numbers); see `Reading.read`."""
        return read_histories(self, histories, last=last, variant=variant)
