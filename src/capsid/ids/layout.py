"""Which global token means which code at which depth; every token belongs to one depth.

Tokens 0 and 1 are padding and end-of-item; then one block of tokens per depth; then the suffix block that TIGER's
collision policy uses; then one token for every merge; then those of other ids of the items. The position
of a code in its row is its depth; code -1 means that the item has no token at that depth. Knows nothing about items.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from capsid.errors import DataError
from capsid.ids.merges import MergeTable
from capsid.ragged import Ragged, offsets_of

ABSENT = -1
PAD = 0
END = 1
FIRST = 2


@dataclass(frozen=True)
class TokenLayout:
    """`sizes[d]` codes at depth d, then `suffix` tokens that tell colliding items apart (0: none), then merges. Tokens
    are numbered from `first` on. `others` are the layouts of other ids of the same items, whose tokens come after
    these."""

    sizes: tuple[int, ...]
    suffix: int = 0
    merges: MergeTable = field(default_factory=MergeTable)
    first: int = FIRST
    others: tuple[TokenLayout, ...] = ()

    def __post_init__(self) -> None:
        end = self.end
        for other in self.others:
            if other.first < end:
                raise DataError(f"the tokens of other ids begin at {other.first}, before {end}")
            end = other.end
        if not len(self.merges):
            return
        if self.merges.first != self._unmerged:
            raise DataError(f"merged tokens begin at {self.merges.first}, but this layout has {self._unmerged} others")
        self.merges.check_depths(self.plain.depth_of, len(self.sizes))

    @cached_property
    def bases(self) -> np.ndarray:
        """First token of every depth, and of the suffix block as the last entry."""
        return self.first + offsets_of(self.sizes)

    @property
    def _unmerged(self) -> int:
        return int(self.bases[-1]) + self.suffix

    @property
    def end(self) -> int:
        """The first token after those of this layout, merged ones included."""
        return self._unmerged + len(self.merges)

    @property
    def vocabulary(self) -> int:
        """Number of tokens, specials, merged ones and those of other ids included."""
        return self.others[-1].end if self.others else self.end

    @property
    def depths(self) -> int:
        """Largest number of tokens in an id, without the end token: that of an id without merges."""
        own = len(self.sizes) + (1 if self.suffix else 0)
        return max([own, *(other.depths for other in self.others)])

    @property
    def plain(self) -> TokenLayout:
        """This layout without merges."""
        return replace(self, merges=MergeTable()) if len(self.merges) else self

    @cached_property
    def depth_of(self) -> np.ndarray:
        """Depth of every token: suffix tokens the last depth, merged ones where they begin, -1 for all others."""
        out = np.full(self.vocabulary, -1, dtype=np.int64)
        for depth in range(len(self.sizes)):
            out[self.bases[depth] : self.bases[depth + 1]] = depth
        out[self.bases[-1] : self._unmerged] = len(self.sizes)
        out[self._unmerged : self.end] = out[self._first_members]
        return out

    @cached_property
    def first_code(self) -> np.ndarray:
        """The code at depth 0 of every token that begins there, -1 elsewhere. Shape: (vocabulary,)."""
        out = np.full(self.vocabulary, -1, dtype=np.int64)
        out[self.bases[0] : self.bases[1]] = np.arange(self.sizes[0])
        out[self._unmerged : self.end] = out[self._first_members]
        return out

    @property
    def _first_members(self) -> np.ndarray:
        return self.merges.members.values[self.merges.members.offsets[:-1]]

    @cached_property
    def spans(self) -> np.ndarray:
        """How many codes every token stands for. Shape: (vocabulary,)."""
        out = ((self.depth_of >= 0) & (self.depth_of < len(self.sizes))).astype(np.int64)
        out[self._unmerged : self.end] = self.merges.members.lengths
        return out

    def tokens(self, codes: Ragged, suffixes: np.ndarray | None = None) -> Ragged:
        """Global tokens of codes, neighbours merged by the table, with each row's suffix token at its end."""
        return self.merges.apply(self._separate(codes, suffixes))

    def _separate(self, codes: Ragged, suffixes: np.ndarray | None) -> Ragged:
        depth = codes.positions
        if len(codes.values) and int(depth.max()) >= len(self.sizes):
            raise DataError(f"an id may have at most {len(self.sizes)} codes")
        sizes = np.asarray(self.sizes, dtype=np.int64)
        wrong = (codes.values < ABSENT) | (codes.values >= sizes[depth])
        if wrong.any():
            raise DataError(f"code {codes.values[wrong][0]} is outside the codebook of its depth")
        rows = Ragged((codes.values + self.bases[depth]).astype(np.int32), codes.offsets)
        absent = codes.values == ABSENT
        if absent.any():
            rows = rows.keep(~absent)
        if not self.suffix:
            return rows
        if suffixes is None or len(suffixes) != len(codes):
            raise DataError("this layout needs one suffix per item")
        if len(suffixes) and int(suffixes.max()) >= self.suffix:
            raise DataError(
                f"{int(suffixes.max()) + 1} items share one code, but there are only {self.suffix} suffix tokens",
                hint="raise collisions.capacity, or use the shared bucket",
            )
        return rows.push((suffixes + self.bases[-1]).astype(np.int32))

    def codes(self, tokens: Ragged) -> Ragged:
        """Tokens back to codes: merges undone, suffix and end tokens dropped, -1 at depths without a token."""
        tokens = self.merges.undo(tokens)
        depth = self.depth_of[tokens.values]
        keep = (depth >= 0) & (depth < len(self.sizes))
        found, depth = (
            Ragged((tokens.values - self.bases[depth]).astype(np.int32), tokens.offsets).keep(keep),
            depth[keep],
        )
        if np.array_equal(depth, found.positions):
            return found
        lengths = np.zeros(len(tokens), dtype=np.int64)
        np.maximum.at(lengths, found.row_numbers, depth + 1)
        out = Ragged.from_lengths(np.full(int(lengths.sum()), ABSENT, dtype=np.int32), lengths)
        # A code's index is the start of its row plus its depth, also where depths before it are absent.
        out.values[out.offsets[found.row_numbers] + depth] = found.values
        return out

    def codes_of(self, token: int) -> tuple[int, ...]:
        """The codes that one token means, from its depth on; none for suffix and special tokens."""
        members = self.merges.undo(Ragged.from_rows([[token]]))[0]
        depth = self.depth_of[members]
        codes = members - self.bases[depth]
        return tuple(int(c) for c in codes[(depth >= 0) & (depth < len(self.sizes))])


def ending_present(codes: Ragged) -> Ragged:
    """Rows without trailing absent codes, so that every id has one representation."""
    present = codes.values != ABSENT
    if present.all():
        return codes
    lengths = np.zeros(len(codes), dtype=np.int64)
    np.maximum.at(lengths, codes.row_numbers[present], codes.positions[present] + 1)
    return codes.slices(0, lengths)
