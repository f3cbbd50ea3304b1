"""From items to Semantic IDs and back: encoder, tokenizer, collision policy and merges as one fitted, savable object.

It works without a generator. Users see their own item ids.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from capsid.base.config import Kinds, from_dict, to_dict
from capsid.base.release_0_1 import parts_today
from capsid.base.run_options import CheckpointFile
from capsid.base.storage import untrusted
from capsid.base.storage.arrays import load_array, map_arrays, save_arrays
from capsid.base.storage.artifacts import new_folder, open_folder, read_json, write_json
from capsid.base.vocabulary import Vocabulary
from capsid.data.columns import items_frame
from capsid.data.dataset import Dataset
from capsid.data.item_table import ItemTable
from capsid.data.sources import as_dataset
from capsid.data.split import leave_one_out
from capsid.encode.base import ItemEncoder, fitted, fresh, with_vectors
from capsid.encode.cache import encode_blocks
from capsid.encode.joined import MAIN, Views, blocks_of
from capsid.encode.kinds import ENCODERS
from capsid.errors import ConfigError
from capsid.ids.collisions import COLLISIONS, Bucket, CollisionPolicy, Costs
from capsid.ids.layout import TokenLayout
from capsid.ids.mixtures import Mixtures
from capsid.ids.reading import Reading
from capsid.ids.semantic_ids import SemanticIds
from capsid.progress import Progress, automatic
from capsid.ragged import Ragged
from capsid.settings import check_together
from capsid.tokenize.base import (
    Adapting,
    AssignsCatalogue,
    FitEncodes,
    LastCosts,
    Merges,
    ReadsBlock,
    Revising,
    Tokenizer,
    Weighing,
    joined_vectors,
    token_vectors,
)
from capsid.tokenize.capsules.semantic_bpe import SemanticBPE
from capsid.tokenize.kinds import MERGES, TOKENIZER_PARTS, TOKENIZERS, IdSystem

KIND = "tokenizer"
# What `load_network` reads.
NETWORK_FILES = ("tokenizer.json", "tokenizer.npz")
_PARTS = ("encoder", "tokenizer", "collisions", "merges")
KINDS: Kinds = {**ENCODERS, **TOKENIZERS, **TOKENIZER_PARTS, **COLLISIONS, **MERGES}


@dataclass(kw_only=True)
class ItemTokenizer:
    """The parts of a recipe; `encoder` is None if the tokenizer needs no vectors, `merges` is None without merges.

    With `other_ids` every item has several ids. The others are made by `others_`, item tokenizers without vectors of
    their own, and `ids` holds all.
    Item vectors have one owner. During the fit it is the item table (its block "item", and one for every other view
    of the encoder); afterwards it is `blocks_` of this class, which serves the vectors of known items.
    """

    tokenizer: Tokenizer
    encoder: ItemEncoder | None = None
    collisions: CollisionPolicy = dataclasses.field(default_factory=Bucket)
    merges: Merges | None = None
    other_ids: tuple[IdSystem, ...] = ()

    @property
    def ids(self) -> SemanticIds:
        """Ids of the fitted catalogue and of items added since."""
        return fitted(getattr(self, "ids_", None), self)

    @property
    def block(self) -> str:
        """Name of the vectors that codes are made from."""
        return self.tokenizer.block if isinstance(self.tokenizer, ReadsBlock) else MAIN

    @property
    def vectors_(self) -> np.ndarray | None:
        """The vectors that the ids were made from, if they are kept. Shape: (items, d)."""
        return self.blocks_.get(self.block)

    def fit(
        self,
        data: Dataset | ItemTable | str | Path | Any,
        *,
        seed: int = 0,
        progress: Progress | None = None,
        checkpoint: CheckpointFile | None = None,
    ) -> ItemTokenizer:
        """Learn from a dataset's training part (leave-one-out), or from an item table made of any other split. A
        dataset may also be given by its name, its folder or a frame of interactions. Progress is shown on a terminal
        and in notebooks unless one is given. With a checkpoint file, interrupted training resumes from it."""
        progress = automatic() if progress is None else progress
        self._check_parts()
        if isinstance(data, ItemTable):
            table = data
        else:
            dataset = as_dataset(data, progress=progress)
            table = ItemTable.from_training(dataset, leave_one_out(dataset).train)
        self.text_fields_ = table.text_fields
        self.encoder_: Any | None = None
        if self.encoder is not None:
            self.encoder_, views = encode_blocks(self.encoder, table, seed=seed, progress=progress)
            table = table.with_blocks(views)
        self.blocks_ = dict(table.blocks)
        self.others_: tuple[ItemTokenizer, ...] = ()
        self.tokenizer_ = fresh(self.tokenizer)
        given: dict[str, Any] = {"seed": seed, "progress": progress}
        # What the tokenizer's `encode` gives for the fitted items, if the fit knows it: codes and confidences.
        self.encoded_: tuple[Ragged, Ragged | None] | None = None
        self.merges_: Any | None = None if self.merges is None else fresh(self.merges)
        learnt: dict[str, Any] = {}
        if isinstance(self.merges_, SemanticBPE) and self.merges_.beside:
            from capsid.tokenize.capsules.beside import fit_beside

            own = self.merges_, self.tokenizer_, table
            learnt["gate"], self.encoded_ = fit_beside(*own, **given, checkpoint=checkpoint)
        elif isinstance(self.tokenizer_, FitEncodes):
            self.encoded_ = self.tokenizer_.fit_encode(table, **given, checkpoint=checkpoint)
        else:
            self.tokenizer_.fit(table, **given, checkpoint=checkpoint)
        codes = self.encoded_[0] if self.encoded_ else self._catalogue_codes(self.tokenizer_, table)
        self.ids_: SemanticIds = self._settled(table, codes)
        if self.merges_ is not None:
            learnt["checkpoint"] = checkpoint and checkpoint.beside("merges")
            self.merges_.fit(self.ids_, table, centres_VD=self.token_vectors(), **given, **learnt)
            self.ids_ = self.ids_.with_merges(self.merges_.table_)
        for number, system in enumerate(self.other_ids, start=1):
            parts = ItemTokenizer(tokenizer=system.tokenizer, collisions=system.collisions)
            made = parts.fit(table, **given, checkpoint=checkpoint and checkpoint.beside(f"ids-{number}"))
            made.ids_ = made.ids_.numbered_from(self.ids_.layout.vocabulary)
            self.others_ = (*self.others_, made.without_vectors())
            self.ids_ = self.ids_.with_other(made.ids_)
        return self

    def revise(self, table: ItemTable, learnt_ND: np.ndarray) -> ItemTokenizer:
        """New ids for the same items from vectors that a generator has learnt (for re-tokenising recipes)."""
        if not isinstance(self.tokenizer_, Revising):
            raise ConfigError(
                f"the tokenizer {self.tokenizer_.kind!r} cannot re-tokenise", hint="drop retokenize from the schedule"
            )
        table = self._with_vectors(table).with_block("learnt", learnt_ND)
        new = self._copied()
        new.tokenizer_.revise(table)
        return new._assign_again(table, self.ids.layout)

    def adapt(self, table: ItemTable, *, most: float, gate_bias: float) -> ItemTokenizer:
        """New ids for at most a share `most` of the items, from the trained routing adapters (stage 2)."""
        if not isinstance(self.tokenizer_, Adapting):
            raise ConfigError(f"the tokenizer {self.tokenizer_.kind!r} has no routing to adapt")
        table, new = self._with_vectors(table), self._copied()
        # Changes by the collision policy are not churn: compare the tokenizer with its own codes.
        new.tokenizer_.end_adapting(table, self.ids.encoded, most)
        layout = self.ids.layout
        if new.merges_ is not None and gate_bias:
            new.merges_ = new.merges_.shifted(gate_bias)
            layout = dataclasses.replace(layout, merges=new.merges_.table_)
        return new._assign_again(table, layout)

    def _copied(self) -> Any:
        """A copy with a fitted tokenizer of its own, which may learn on."""
        new = copy.copy(self)
        new.tokenizer_ = copy.deepcopy(self.tokenizer_)
        return new

    def with_tokenizer(self, table: ItemTable, fitted: Tokenizer) -> ItemTokenizer:
        """A copy with another fitted tokenizer of the same sizes, and the new ids that it gives the same items."""
        new = copy.copy(self)
        new.tokenizer_ = fitted
        return new._assign_again(self._with_vectors(table), self.ids.layout)

    def _assign_again(self, table: ItemTable, layout: TokenLayout) -> ItemTokenizer:
        ids = self._settled(table, self._catalogue_codes(self.tokenizer_, table))
        if ids.layout.sizes != layout.sizes:
            raise ConfigError("re-tokenising changed the codebook sizes, so the generator's tokens lost their meaning")
        old, kept = self.ids_.mixtures, self.ids_
        self.ids_ = dataclasses.replace(ids, layout=layout, reading=kept.reading, others=kept.others)
        if old is not None:
            self.ids_ = self.ids_.with_mixtures(self._mixtures(table, old.strongest, old.sharpness))
        return self

    def softened(self, table: ItemTable, strongest: int, sharpness: float = 1.0) -> ItemTokenizer:
        """A copy that reads the table's items as mixtures of codes (see `capsid.ids.mixtures`)."""
        soft = copy.copy(self)
        soft.ids_ = self.ids.with_mixtures(self._mixtures(self._with_vectors(table), strongest, sharpness))
        return soft

    def with_reading(self, reading: Reading) -> ItemTokenizer:
        """A copy whose ids are read in another way (see `capsid.ids.reading`); itself if that is their way already."""
        if self.ids.reading == reading:
            return self
        new = copy.copy(self)
        new.ids_ = self.ids.with_reading(reading)
        return new

    def _mixtures(self, table: ItemTable, strongest: int, sharpness: float) -> Mixtures:
        if not isinstance(self.tokenizer_, Weighing):
            raise ConfigError(
                f"the tokenizer {self.tokenizer_.kind!r} has no weights of codes, which soft input needs",
                hint="set generator.soft_input=0",
            )
        return Mixtures.of(*self.tokenizer_.strongest_codes(table, strongest), sharpness)

    @staticmethod
    def _catalogue_codes(tokenizer: Tokenizer, table: ItemTable) -> Ragged:
        """Codes of a whole catalogue: jointly if the tokenizer supports it, otherwise item by item."""
        return tokenizer.assign_catalogue(table) if isinstance(tokenizer, AssignsCatalogue) else tokenizer.encode(table)

    def _settled(self, table: ItemTable, codes: Ragged) -> SemanticIds:
        """Ids of a whole catalogue with these codes under the collision policy."""
        return SemanticIds.assign(table.items, codes, self.tokenizer_.sizes, self.collisions, self._costs(table, codes))

    def _costs(self, table: ItemTable, codes: Ragged) -> Costs | None:
        if not self.collisions.needs_costs or not isinstance(self.tokenizer_, LastCosts):
            return None
        return self.tokenizer_.last_costs(table, codes)

    def _check_parts(self) -> None:
        for part in (self.encoder, self.tokenizer, self.merges):
            if part is not None:
                check_together(part)
        if self.collisions.needs_costs and not isinstance(self.tokenizer, LastCosts):
            raise ConfigError(
                f"the collision policy {self.collisions.kind!r} needs costs of last codes, which the tokenizer "
                f"{self.tokenizer.kind!r} does not give",
                hint="set collisions=suffix or collisions=bucket",
            )

    def encode(self, items: pl.DataFrame | Mapping[str, Sequence[Any]]) -> dict[str, tuple[int, ...]]:
        """Codes of items given by their attributes (a column `item_id` and the text fields), known or new. A known item
        keeps its codes, whatever its attributes are now. A new item gets the tokenizer's codes; `with_items` also
        applies the collision policy."""
        frame, names = items_frame(items)
        rows, known = self.ids.items.numbers(names, missing="negative"), self.ids.codes
        new = np.flatnonzero(rows < 0)
        found = iter(self.tokenizer_.encode(self._table(frame[new])) if len(new) else ())
        codes = (known[row] if row >= 0 else next(found) for row in rows)
        return {name: tuple(int(c) for c in own) for name, own in zip(names, codes)}

    def with_items(
        self, items: pl.DataFrame | Mapping[str, Sequence[Any]], *, vectors: str | Path | None = None
    ) -> ItemTokenizer:
        """A copy that also knows new items. Nothing is retrained; old ids and this tokenizer do not change.
        `vectors` is a file with the vectors of new items, if the tokenizer was fitted on vectors from a file."""
        grown = copy.copy(self)
        if vectors is not None:
            grown.encoder_ = with_vectors(self.encoder_, vectors)
        return grown._with_table(grown._table(items_frame(items)[0]))

    def _with_table(self, table: ItemTable) -> ItemTokenizer:
        """A copy that also knows the items of a table."""
        grown = copy.copy(self)
        codes = self.tokenizer_.encode(table)
        old = self.ids.mixtures
        soft = None if old is None else self._mixtures(table, old.strongest, old.sharpness)
        grown.others_ = tuple(other._with_table(table) for other in self.others_)
        others = [other.ids for other in grown.others_]
        grown.blocks_ = {n: np.concatenate([old_ND, table.vectors(n)]) for n, old_ND in self.blocks_.items()}
        costs = self._costs(table, codes)
        grown.ids_ = self.ids.extend(list(table.items), codes, self.collisions, costs, soft, others)
        return grown

    def without_vectors(self) -> ItemTokenizer:
        """A copy without the items' vectors: its folder is smaller, and reports show less."""
        bare = copy.copy(self)
        bare.blocks_ = {}
        return bare

    def decode(self, tokens: Sequence[int]) -> list[str]:
        return self.ids.lookup(tokens)

    def token_vectors(self) -> np.ndarray | None:
        """One vector per token where the tokenizer has centres, NaN elsewhere. Shape: (vocabulary, d)."""
        layout, centres = self.ids.layout, self.tokenizer_.centres()
        if centres is None:
            return None
        own = [(token_vectors(layout, centres), slice(0, layout.end))]
        for other in self.others_:
            if (vectors_VD := other.token_vectors()) is not None:
                own.append((vectors_VD, slice(other.ids.layout.first, other.ids.layout.end)))
        return joined_vectors(own, layout.vocabulary) if len(own) > 1 else own[0][0]

    def save(self, folder: Path) -> None:
        """Write into an open artifact folder."""
        parts = {name: to_dict(getattr(self, name)) for name in (*_PARTS, "other_ids")}
        write_json(folder / "tokenizer.json", {**parts, "text_fields": list(self.text_fields_)})
        save_arrays(folder / "tokenizer.npz", self.tokenizer_.state())
        if self.encoder_ is not None:
            save_arrays(folder / "encoder.npz", self.encoder_.state())
        if self.merges_ is not None:
            save_arrays(folder / "merges.npz", self.merges_.state())
        for name, vectors_ND in self.blocks_.items():
            np.save(folder / _vectors_file(name), vectors_ND, allow_pickle=False)
        self.ids.save(folder)
        for number, other in enumerate(self.others_, start=1):
            (folder / f"ids-{number}").mkdir()
            other.save(folder / f"ids-{number}")

    @classmethod
    def load(cls, folder: Path, kinds: Kinds | None = None) -> ItemTokenizer:
        """Read what `save` wrote; `kinds` adds user-defined parts."""
        known = {**KINDS, **(kinds or {})}
        with untrusted.interpreting(folder, "tokenizer"):
            about = parts_today(untrusted.mapping(read_json(folder / "tokenizer.json"), "tokenizer.json"))
            parts: dict[str, Any] = {n: from_dict(None, about[n], known) if about.get(n) else None for n in _PARTS}
            self = cls(**parts, other_ids=tuple(from_dict(IdSystem, own, known) for own in about["other_ids"]))
            self.text_fields_ = tuple(untrusted.texts(about["text_fields"], "tokenizer.json: text_fields"))
            self.tokenizer_ = _loaded(self.tokenizer, folder / "tokenizer.npz")
            self.encoder_ = None if self.encoder is None else _loaded(self.encoder, folder / "encoder.npz")
            self.merges_ = None if self.merges is None else _loaded(self.merges, folder / "merges.npz")
            self.ids_ = SemanticIds.load(folder, kinds)
            if tuple(self.tokenizer_.sizes) != self.ids_.layout.sizes:
                raise untrusted.refuse("the tokenizer's codebooks and the ids' codebooks have different sizes")
            numbers = range(1, 1 + len(self.other_ids))
            self.others_ = tuple(cls.load(folder / ids_folder(folder, number), kinds) for number in numbers)
            for other in self.others_:
                self.ids_ = self.ids_.with_other(other.ids)
            # Mapped, not read: only diagnostics look at the vectors.
            views = self.encoder.parts if isinstance(self.encoder, Views) else (MAIN, self.block)
            files = {name: folder / _vectors_file(name) for name in views}
            self.blocks_ = {name: load_array(f, memory_map=True) for name, f in files.items() if f.exists()}
            for name, block in self.blocks_.items():
                if (block.ndim, len(block)) != (2, len(self.ids_)):
                    raise untrusted.refuse(
                        f"the vectors {name!r} must have one row for each of {len(self.ids_):,} items"
                    )
            return self

    def save_pretrained(self, path: str | Path) -> None:
        """Write a folder that `from_pretrained` reads, atomically."""
        self.ids  # noqa: B018  (raises if not fitted, before anything is written)
        with new_folder(Path(path), kind=KIND) as folder:
            self.save(folder)

    @classmethod
    def from_pretrained(cls, path: str | Path, *, kinds: Kinds | None = None) -> ItemTokenizer:
        """Read a folder that `save_pretrained` wrote; `kinds` adds user-defined parts."""
        return cls.load(open_folder(Path(path), kind=KIND), kinds)

    def _with_vectors(self, table: ItemTable) -> ItemTable:
        """The fitted items with their vectors."""
        return table.with_blocks(self.blocks_)

    def _table(self, frame: pl.DataFrame) -> ItemTable:
        """A table of new items with their vectors."""
        self.ids  # noqa: B018  (raises if not fitted)
        names = Vocabulary(str(i) for i in frame["item_id"])
        table = ItemTable.new_items(names, frame.drop("item_id"), self.text_fields_)
        if self.encoder_ is None:
            return table
        return table.with_blocks(blocks_of(self.encoder_, table))


def load_network(folder: Path, kinds: Kinds | None = None) -> Tokenizer:
    """Only the fitted tokenizer of a folder that `ItemTokenizer.save` wrote."""
    with untrusted.interpreting(folder, "tokenizer"):
        about = untrusted.mapping(read_json(folder / "tokenizer.json"), "tokenizer.json")
        part = from_dict(None, about["tokenizer"], {**KINDS, **(kinds or {})})
        return _loaded(part, folder / "tokenizer.npz")


def ids_folder(folder: Path, number: int) -> str:
    """The name of the folder of other ids in a tokenizer's folder; release 0.1 had one."""
    return "second" if number == 1 and (folder / "second").exists() else f"ids-{number}"


def _vectors_file(block: str) -> str:
    return "vectors.npy" if block == MAIN else f"vectors-{block}.npy"


def _loaded(part: Any, file: Path) -> Any:
    """A copy of a part with its learnt arrays. They are mapped: some have a row for every item."""
    return fresh(part).load_state(untrusted.finite(map_arrays(file, lambda _: True), file.name))
