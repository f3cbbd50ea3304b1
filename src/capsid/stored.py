"""A fitted recommender as a folder: JSON, safetensors, npz, npy and Parquet under one manifest of hashes.

recipe.json  about.json  log.json  users.parquet  items.parquet  split.npz  tokenizer/  trie/  generator.safetensors
memory.npz (if it has a memory)  dense.safetensors (item vectors beside ids)  trie-1/, ... (if items have several ids)
README.md (the model card, for people only). Earlier versions wrote users.json instead of users.parquet.
"""

from __future__ import annotations

import dataclasses
import io
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from safetensors.torch import load_file
from safetensors.torch import save as tensor_bytes
from torch import Tensor

import capsid
from capsid.base.config import Kinds
from capsid.base.storage import untrusted
from capsid.base.storage.arrays import load_arrays, save_arrays
from capsid.base.storage.artifacts import new_folder, open_folder, read_json, write_json
from capsid.base.storage.parquet import read_rows, write_rows
from capsid.base.vocabulary import Vocabulary
from capsid.data.dataset import FILE_ORDER, item_titles
from capsid.data.split import Cases, Split
from capsid.decode.model import FittedModel
from capsid.encode.base import fresh
from capsid.errors import DataError
from capsid.generate.dense_items import DenseItems
from capsid.ids.reading import ReadableIds
from capsid.ids.trie import Over, Trie
from capsid.memory.memory import REACH, FittedMemory, Remembering
from capsid.ragged import Ragged
from capsid.recipe import Recipe
from capsid.tokenize.item_tokenizer import ItemTokenizer

KIND = "run"


@dataclass(frozen=True, eq=False)
class Fitted:
    """Everything that was learnt. `tries` has one trie for each id system, `dense` are item vectors beside the ids.
    `log` has one entry per phase, and one more for each side that a joint term trains in it."""

    tokenizer: ItemTokenizer
    tries: tuple[Trie, ...]
    generator: Any
    over: Over
    log: tuple[dict[str, Any], ...] = ()
    dense: DenseItems | None = None
    memory: FittedMemory | None = None

    @property
    def trie(self) -> Trie:
        return self.tries[0]

    @cached_property
    def model(self) -> FittedModel:
        """What a search needs of it."""
        return searchable(self.generator, self.tokenizer.ids, self.tries, self.over, self.dense, self.memory)

    def with_items(self, tokenizer: ItemTokenizer, block: str | None) -> Fitted:
        """A copy with the new items of `tokenizer`; `block` names the vectors that dense vectors are made from."""
        old, dense = len(self.tokenizer.ids), self.dense
        new = np.arange(old, len(tokenizer.ids))
        systems = zip(self.tries, tokenizer.ids.systems, strict=True)
        tries = tuple(trie.extend(ids.prefix_free.take(new)) for trie, ids in systems)
        if dense is not None:
            if block not in tokenizer.blocks_:
                raise DataError(f"the new items have no vectors {block!r}", hint="fit again with vectors kept")
            dense = dense.extended(tokenizer.blocks_[block][old:])
        memory = self.memory and self.memory.grown(len(tokenizer.ids), tokenizer.vectors_)
        return dataclasses.replace(self, tokenizer=tokenizer, tries=tries, dense=dense, memory=memory)


def searchable(
    generator: Any,
    ids: ReadableIds,
    tries: tuple[Trie, ...],
    over: Over,
    dense: DenseItems | None = None,
    memory: FittedMemory | None = None,
) -> FittedModel:
    """The parts of a fitted method as a search sees them: in training, in memory, or mapped."""
    network = generator if memory is None else Remembering(generator, memory, ids)
    return FittedModel(network, ids, tries, generator.history, over, dense)


def stored_recipe(run: str | Path) -> Recipe:
    """The recipe of a finished run, with the sizes that were used."""
    return Recipe.from_dict(read_json(open_folder(Path(run), kind=KIND) / "recipe.json"))


def generator_entries(log: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The entries of a log in which the generator learns: the budget of a method counts these alone."""
    return [entry for entry in log if entry.get("trains", "generator") == "generator"]


@dataclass(frozen=True, eq=False)
class Catalogue:
    """What a fitted recommender keeps of its data, so that it can evaluate and show titles without the dataset.
    `retired` items keep their ids and may occur in histories, but are not recommended. `order`: that of equal times."""

    name: str
    fingerprint: str
    users: Vocabulary
    items: Vocabulary
    attributes: pl.DataFrame
    counts: np.ndarray
    split: Split
    retired: frozenset[str] = frozenset()
    order: str = FILE_ORDER

    def with_items(self, items: Vocabulary, attributes: pl.DataFrame) -> Catalogue:
        """A copy with more items at the end, which have no interactions."""
        every = pl.concat([self.attributes, attributes], how="diagonal_relaxed").select(self.attributes.columns)
        counts = np.concatenate([self.counts, np.zeros(len(items) - len(self.counts), dtype=self.counts.dtype)])
        grown = dataclasses.replace(self, items=items, attributes=every, counts=counts)
        old = len(self.items)
        grown.__dict__["titles"] = self.titles + item_titles(Vocabulary(items[old:]), every[old:])
        return grown

    def histories(self) -> Ragged:
        """Everything that the run knows each user took, oldest first: training items, and held-out ones after them."""
        longest = {u: self.split.train[u] for u in range(len(self.users))}
        for cases in (self.split.valid, self.split.test):
            for user, history, target in zip(cases.users.tolist(), cases.histories, cases.targets):
                if len(history) + 1 > len(longest[user]):
                    longest[user] = np.append(history, target)
        return Ragged.from_rows(list(longest.values()), np.int64)

    def with_retired(self, retired: frozenset[str]) -> Catalogue:
        """A copy with other retired items. It keeps the titles, which take long to make for a large catalogue."""
        changed = dataclasses.replace(self, retired=retired)
        if "titles" in self.__dict__:
            changed.__dict__["titles"] = self.titles
        return changed

    @cached_property
    def titles(self) -> list[str]:
        """The display title of every item."""
        return item_titles(self.items, self.attributes)

    def title(self, number: int) -> str:
        return self.titles[int(number)]


@dataclass(frozen=True, eq=False)
class Stored:
    """The content of a run's folder."""

    recipe: Recipe
    seed: int
    fitted: Fitted
    catalogue: Catalogue


def save_run(path: Path, run: Stored, *, texts: Mapping[str, str] | None = None) -> None:
    """Write everything; an existing run at `path` is replaced only when the new one is complete. `texts` are files for
    people by name; they are listed and hashed like all others."""
    fitted, catalogue = run.fitted, run.catalogue
    with new_folder(path, kind=KIND) as folder:
        write_json(folder / "recipe.json", run.recipe.to_dict())
        write_json(folder / "log.json", list(fitted.log))
        write_rows(folder / "users.parquet", {"user_id": catalogue.users})
        about = {
            "seed": run.seed,
            "dataset": catalogue.name,
            "dataset_fingerprint": catalogue.fingerprint,
            "order": catalogue.order,
            "split": catalogue.split.kind,
            "split_fingerprint": catalogue.split.fingerprint,
            "retired": sorted(catalogue.retired),
            "versions": _versions(),
        }
        write_json(folder / "about.json", about)
        # Parquet needs at least one column, even if items have no attributes.
        frame = catalogue.attributes.with_columns(pl.Series("item_id", catalogue.items.column))
        # We write the bytes ourselves, so that a full disk is an OSError, which `new_folder` handles.
        buffer = io.BytesIO()
        frame.write_parquet(buffer)
        (folder / "items.parquet").write_bytes(buffer.getvalue())
        save_arrays(folder / "split.npz", {"counts": catalogue.counts, **_split_arrays(catalogue.split)})
        (folder / "tokenizer").mkdir()
        fitted.tokenizer.save(folder / "tokenizer")
        for number, trie in enumerate(fitted.tries):
            trie.save(folder / _trie_names(number)[0])
        (folder / "generator.safetensors").write_bytes(tensor_bytes(fitted.generator.state()))
        if fitted.memory is not None:
            fitted.memory.save(folder)
        for name, text in (texts or {}).items():
            (folder / name).write_text(text, encoding="utf-8")
        if fitted.dense is not None:
            (folder / "dense.safetensors").write_bytes(tensor_bytes(fitted.dense.state()))


def load_run(path: Path, kinds: Kinds) -> Stored:
    """Check every hash, then read everything."""
    folder = open_folder(path, kind=KIND)
    with untrusted.interpreting(folder, KIND):
        about = untrusted.mapping(read_json(folder / "about.json"), "about.json")
        recipe = Recipe.from_dict(read_json(folder / "recipe.json"), kinds)
        for name in ("tokenizer", "reading", "generator", "decoder"):
            if not dataclasses.is_dataclass(getattr(recipe, name)):
                raise untrusted.refuse(f"recipe.json: the {name} is not a part")
        tokenizer = ItemTokenizer.load(folder / "tokenizer", kinds)
        state = load_file(folder / "generator.safetensors")
        memory = load_memory(folder, recipe, state, len(tokenizer.ids))
        generator = fresh(recipe.generator).load_state(tokenizer.ids, state)
        log = tuple(untrusted.mapping(entry, "log.json: an entry") for entry in read_json(folder / "log.json"))
        catalogue = _load_catalogue(folder, about, tokenizer.ids.items)
        systems = tokenizer.ids.systems
        # Mapped, so that processes serving one run share pages. Files are replaced, never truncated: maps stay valid.
        tries = tuple(Trie.load(trie_folder(folder, number), memory_map=True) for number in range(len(systems)))
        for trie, own in zip(tries, systems):
            if not trie.holds(own.prefix_free):
                raise untrusted.refuse("the trie does not hold the ids of the items")
        seed = untrusted.whole(about["seed"], "about.json: seed", least=-(2**63), most=2**64)
        dense = load_dense(folder, recipe, generator, len(tokenizer.ids))
        return Stored(recipe, seed, Fitted(tokenizer, tries, generator, recipe.over, log, dense, memory), catalogue)


def _trie_names(number: int) -> tuple[str, ...]:
    if number == 0:
        return ("trie",)
    return (f"trie-{number}", "trie-second") if number == 1 else (f"trie-{number}",)


def trie_folder(folder: Path, number: int) -> Path:
    """The folder of the trie of an id system in a run's folder; release 0.1 knew at most two systems."""
    found = [folder / name for name in _trie_names(number) if (folder / name).exists()]
    if not found:
        raise untrusted.refuse(f"the trie of id {number + 1} is missing")
    return found[0]


def load_memory(
    folder: Path, recipe: Recipe, state: dict[str, Tensor], items: int, *, checked: bool = False
) -> FittedMemory | None:
    """The memory of a run, where the method has one; `checked` as in `FittedMemory.load`. Release 0.1 stored its counts
    with the ids and its weights with those of the network: they are taken out of `state`."""
    weight, temperature = (state.pop(f"memory.{name}", None) for name in ("weight", "temperature"))
    if recipe.memory is None:
        return None
    if weight is None:
        return FittedMemory.load(folder, items, checked=checked)
    arrays, cooled = load_arrays(folder / "tokenizer" / "ids.npz"), 1.0 if temperature is None else float(temperature)
    return FittedMemory.of(arrays, REACH * weight.numpy(), cooled, items, checked=checked)


def load_dense(folder: Path, recipe: Recipe, generator: Any, items: int, *, checked: bool = False) -> DenseItems | None:
    """The item vectors beside ids, where the method has them; `checked` as in `DenseItems.load`."""
    term = recipe.dense
    if term is None:
        return None
    state = load_file(folder / "dense.safetensors")
    inputs, width = state["network.mean_I"].numel(), generator.network.width
    return DenseItems.load(lambda: term.network(inputs, width), state, items, checked=checked)


def _load_catalogue(folder: Path, about: dict[str, Any], items: Vocabulary) -> Catalogue:
    file = folder / "items.parquet"
    # The file's footer has the number of rows: it is checked before any row is unpacked.
    rows = int(pl.scan_parquet(file).select(pl.len()).collect().item())
    frame = pl.read_parquet(file) if rows == len(items) else None
    if frame is None or not _lists(frame["item_id"], items):
        raise untrusted.refuse("items.parquet does not list the items that have ids")
    arrays, n = load_arrays(folder / "split.npz"), len(items)
    users = load_users(folder)
    return Catalogue(
        untrusted.text(about["dataset"], "about.json: dataset"),
        untrusted.text(about["dataset_fingerprint"], "about.json: dataset_fingerprint"),
        users,
        items,
        frame.drop("item_id"),
        untrusted.integers(arrays, "counts", "split.npz", count=n, below=2**62),
        _split_of(untrusted.text(about["split"], "about.json: split"), arrays, len(users), n),
        frozenset(untrusted.texts(about["retired"], "about.json: retired")),
        # All orders were those of files before there was another one.
        untrusted.text(about.get("order", FILE_ORDER), "about.json: order"),
    )


def load_users(folder: Path) -> Vocabulary:
    """The ids of a run's users."""
    users: Any = read_rows(folder / "users.parquet", {"user_id": Vocabulary})["user_id"]
    return users


def _lists(names: pl.Series, items: Vocabulary) -> bool:
    """Whether a column holds these ids in this order; compared without making Python texts of them."""
    return names.dtype == pl.String and items.column.equals(names.to_arrow().cast(items.column.type))


def _split_arrays(split: Split) -> dict[str, np.ndarray]:
    out = {"train_values": split.train.values, "train_offsets": split.train.offsets}
    for name in ("valid", "test"):
        cases = split.cases(name)
        out[f"{name}_users"], out[f"{name}_targets"] = cases.users, cases.targets
        out[f"{name}_values"], out[f"{name}_offsets"] = cases.histories.values, cases.histories.offsets
    if split.cold is not None:
        out["cold"] = split.cold
    return out


def _split_of(kind: str, arrays: dict[str, np.ndarray], users: int, items: int) -> Split:
    def cases(name: str) -> Cases:
        asked = untrusted.integers(arrays, f"{name}_users", file, below=users)
        histories = untrusted.ragged(arrays, f"{name}_values", f"{name}_offsets", file, count=len(asked), below=items)
        return Cases(
            asked, histories, untrusted.integers(arrays, f"{name}_targets", file, count=len(asked), below=items)
        )

    file = "split.npz"
    train = untrusted.ragged(arrays, "train_values", "train_offsets", file, count=users, below=items)
    cold = untrusted.integers(arrays, "cold", file, below=items) if "cold" in arrays else None
    return Split(kind, train, cases("valid"), cases("test"), cold)


def _versions() -> dict[str, Any]:
    import torch

    return {"capsid": capsid.__version__, "python": platform.python_version(), "torch": torch.__version__}
