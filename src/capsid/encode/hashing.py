"""Vectors of the items' text without a model: hashed word and letter n-grams, idf-weighted and projected.

Fast and free of dependencies, for tests, CI and first experiments. Captures spelling, not meaning.
"""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from capsid.base.config import fingerprint
from capsid.base.randomness import numpy_rng
from capsid.base.run_options import CheckpointFile
from capsid.data.item_table import ItemTable
from capsid.encode.base import content_hash, fitted, l2_normalise, pack_strings, require_items, take, unpack_strings
from capsid.encode.text import item_texts, refuse_blank_catalogue, resolve_fields
from capsid.progress import Progress, silent
from capsid.settings import check_settings, setting

if TYPE_CHECKING:
    import scipy.sparse as sp

_WORD = re.compile(r"\w+")
# Lengths of letter n-grams, and how many buckets n-grams are hashed to.
LETTERS, BUCKETS = (3, 4), 1 << 15


@dataclass(kw_only=True)
class HashingEncoder:
    """Words, their pairs and letter n-grams hashed to buckets, idf-weighted, then a random sign projection. The seed of
    `fit` has no effect. An item without any text gets zeros."""

    kind: ClassVar[str] = "hashing"

    dim: int = setting(64, "Width of the vectors.", least=1)
    fields: tuple[str, ...] = setting((), "Columns that make an item's text; empty: the dataset's usual ones.")

    def __post_init__(self) -> None:
        check_settings(self)
        self.fields_: tuple[str, ...] | None = None
        self.idf_: np.ndarray | None = None

    def fit(
        self, table: ItemTable, *, seed: int = 0, progress: Progress = silent, checkpoint: CheckpointFile | None = None
    ) -> Self:
        """Count in how many items each bucket occurs."""
        require_items(table)
        fields = resolve_fields(table, self.fields)
        texts = item_texts(table, fields)
        refuse_blank_catalogue(texts, table, fields)
        found_B = np.asarray((self._count(texts) > 0).sum(axis=0)).ravel()
        self.fields_ = fields
        self.idf_ = (np.log((1 + len(table)) / (1 + found_B)) + 1e-3).astype(np.float32)
        return self

    def transform(self, table: ItemTable, *, progress: Progress = silent) -> np.ndarray:
        """Hash, weight and project; works for new items. Shape: (items, dim)."""
        counts_NB = self._count(item_texts(table, fitted(self.fields_, self)))
        counts_NB.data = np.sqrt(counts_NB.data)
        weighted_NB = counts_NB.multiply(fitted(self.idf_, self)[None, :]).tocsr()
        signs_BD = numpy_rng(0, "hashing").integers(0, 2, (BUCKETS, self.dim)).astype(np.float32) * 2 - 1
        return l2_normalise(np.asarray(weighted_NB @ signs_BD))

    def state(self) -> dict[str, np.ndarray]:
        """The fields of the template and the weights of the buckets."""
        return {"fields": pack_strings(fitted(self.fields_, self)), "idf": fitted(self.idf_, self)}

    def load_state(self, state: Mapping[str, np.ndarray]) -> Self:
        self.fields_ = tuple(unpack_strings(take(state, "fields")))
        self.idf_ = take(state, "idf")
        return self

    def cache_key(self, table: ItemTable, *, seed: int = 0) -> str:
        """The texts and the hyperparameters; no seed."""
        fields = resolve_fields(table, self.fields)
        return fingerprint(self, content_hash(table.items, fields, item_texts(table, fields)))

    def _count(self, texts: list[str]) -> sp.csr_matrix:
        """How often each bucket occurs in each text. Shape: (items, buckets)."""
        import scipy.sparse as sp

        of_word: dict[str, list[int]] = {}
        indices: list[int] = []
        ends = [0]
        for text in texts:
            # A text of punctuation alone is still a text: the whole text is its only feature.
            words = _WORD.findall(text.lower()) or ([text] if text else [])
            for word in words:
                if word not in of_word:
                    of_word[word] = _word_buckets(word)
                indices.extend(of_word[word])
            indices.extend(_bucket(f"{one} {two}") for one, two in itertools.pairwise(words))
            ends.append(len(indices))
        data = np.ones(len(indices), dtype=np.float32)
        counts_NB = sp.csr_matrix((data, np.array(indices, dtype=np.int64), ends), shape=(len(texts), BUCKETS))
        counts_NB.sum_duplicates()
        return counts_NB


def _word_buckets(word: str) -> list[int]:
    padded = f"<{word}>"
    grams = [padded[i : i + n] for n in LETTERS for i in range(len(padded) - n + 1)]
    return [_bucket(gram) for gram in (*grams, word)]


def _bucket(gram: str) -> int:
    # Python's own hash() is salted differently in every process.
    return zlib.crc32(gram.encode()) % BUCKETS
