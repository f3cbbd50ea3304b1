"""The recommender a user holds: fit, recommend, evaluate, save, load. Own item ids in, own item ids out.

A thin front: the work is done in the rooms below. Everything fitted is usable without the training data at hand.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from capsid.config import Kinds, fingerprint
from capsid.data.dataset import Dataset
from capsid.data.item_table import ItemTable
from capsid.data.sources import load_dataset
from capsid.data.split import Split, leave_one_out
from capsid.decode.retrieve import Retriever
from capsid.errors import ConfigError, DataError, NotFittedError
from capsid.evaluate.evaluator import Evaluation, evaluate
from capsid.popularity import popularity_order
from capsid.progress import Progress, silent
from capsid.ragged import Ragged
from capsid.recipe import KINDS, Recipe
from capsid.recipes import get_recipe
from capsid.stored import Catalogue, Fitted, Stored, load_run, save_run

if TYPE_CHECKING:
    from capsid.fitting import TokenizerFrom

# Users at once in a search: enough to fill the matrix products, small enough for the caches (benchmarks/decode.py).
BATCH = 64


@dataclass(frozen=True)
class Recommendation:
    """Items best first. `personal` is False where no item of the history was known and popular items stand in."""

    items: tuple[str, ...]
    scores: tuple[float, ...]
    titles: tuple[str, ...]
    personal: bool = True

    def __len__(self) -> int:
        return len(self.items)


class Recommender:
    """A recipe, and after `fit` all that it learnt."""

    def __init__(self, recipe: Recipe, *, seed: int = 0) -> None:
        self.recipe = recipe
        self.seed = seed

    @classmethod
    def from_recipe(cls, recipe: str | Recipe, *, seed: int = 0, settings: Iterable[str] = ()) -> Recommender:
        """By name or value; `settings` are `part.field=value` texts."""
        chosen = get_recipe(recipe) if isinstance(recipe, str) else recipe
        return cls(chosen.with_settings(settings), seed=seed)

    @property
    def fitted(self) -> Fitted:
        """All that was learnt."""
        if not hasattr(self, "fitted_"):
            raise NotFittedError("this recommender is not fitted", hint="call fit, or load one with from_pretrained")
        return self.fitted_

    def fit(
        self,
        data: Dataset | str,
        *,
        split: Split | None = None,
        work: Path | None = None,
        kinds: Kinds | None = None,
        progress: Progress = silent,
        tokenizer_from: TokenizerFrom | None = None,
    ) -> Recommender:
        """Learn from a dataset (default split: leave one out). With `work`, a killed fit goes on when called again.

        `tokenizer_from` is asked for a fitted tokenizer of the same parts, data and seed, instead of fitting one here.
        """
        # Late, so that serving a fitted recommender never loads training code.
        from capsid.fitting import fit_recipe

        dataset = load_dataset(data, progress=progress) if isinstance(data, str) else data
        split = split or leave_one_out(dataset)
        table = ItemTable.from_training(dataset, split.train)
        if work is not None:
            work = Path(work) / self.fingerprint(dataset, split)
        self.fitted_ = fit_recipe(
            self.recipe,
            table,
            split,
            seed=self.seed,
            work=work,
            kinds={**KINDS, **(kinds or {})},
            progress=progress,
            tokenizer_from=tokenizer_from,
        )
        self.catalogue_ = Catalogue(
            dataset.name, dataset.fingerprint, dataset.users, dataset.items, dataset.attributes, table.counts, split
        )
        return self

    def fingerprint(self, dataset: Dataset, split: Split) -> str:
        """Changes with the recipe, the seed, the data or the split: stages of another split may have seen its cases."""
        arrays = (split.train.values, split.train.offsets, split.valid.targets, split.test.targets)
        hashes = [hashlib.sha256(np.asarray(a, dtype=np.int64).tobytes()).hexdigest() for a in arrays]
        return fingerprint(self.recipe, self.seed, dataset.fingerprint, split.kind, hashes)

    @property
    def retriever(self) -> Retriever:
        """The search over this recommender's items."""
        f = self.fitted
        return Retriever(f.generator, f.tokenizer.ids, f.trie, self.recipe.decoder, f.generator.history)

    def recommend(
        self,
        history: Sequence[str],
        k: int = 10,
        *,
        filter_history: bool = True,
        allow: Sequence[str] | None = None,
        deny: Sequence[str] | None = None,
        unknown: str = "raise",
    ) -> Recommendation:
        """The k best next items after a history of item ids, oldest first; see `recommend_many`."""
        if isinstance(history, str):
            raise DataError(f"a history is a list of item ids, got the text {history!r}", hint="pass [id, id, ...]")
        many = self.recommend_many([history], k, filter_history=filter_history, allow=allow, deny=deny, unknown=unknown)
        return many[0]

    def recommend_many(
        self,
        histories: Sequence[Sequence[str]],
        k: int = 10,
        *,
        filter_history: bool = True,
        allow: Sequence[str] | None = None,
        deny: Sequence[str] | None = None,
        unknown: str = "raise",
    ) -> list[Recommendation]:
        """The k best next items after each history; `allow` and `deny` hold inside the search.

        `unknown` items in a history: "raise" or "drop". A history of which nothing is left gets the most popular items.
        """
        if k < 1:
            raise ConfigError(f"k is {k}, but at least one item must be asked for")
        if unknown not in ("raise", "drop"):
            raise DataError(f"unknown={unknown!r}", hint="allowed: raise, drop")
        items = self.fitted.tokenizer.ids.items
        rows = [items.numbers([str(i) for i in h], missing=unknown) for h in histories]
        options = {
            "filter_history": filter_history,
            "allow": None if allow is None else items.numbers(allow),
            "deny": None if deny is None else items.numbers(deny),
        }
        found = self._rank([r for r in rows if len(r)], k, options)
        return [next(found) if len(r) else self._popular(k, options) for r in rows]

    def predict(
        self, split: str = "test", k: int = 50, *, filter_history: bool = False, progress: Progress = silent
    ) -> Iterator[tuple[str, list[str], list[float]]]:
        """User, ranked items and scores for every case of a split."""
        retriever, catalogue = self.retriever, self.catalogue_
        cases = catalogue.split.cases(split)
        for start in range(0, len(cases), BATCH):
            rows = np.arange(start, min(start + BATCH, len(cases)))
            ranked = retriever.rank(cases.histories.take(rows), k, filter_history=filter_history)
            for row, items, scores in zip(rows, ranked.items_UK, ranked.scores_UK):
                kept = items >= 0
                user = catalogue.users[int(cases.users[row])]
                yield user, catalogue.items.ids(items[kept]), [float(s) for s in scores[kept]]
            progress.update(f"{split}: {rows[-1] + 1:,}/{len(cases):,} users")

    def evaluate(
        self,
        split: str = "test",
        *,
        ks: tuple[int, ...] = (5, 10),
        filter_history: bool = False,
        progress: Progress = silent,
    ) -> Evaluation:
        """Metrics on a split, with one value a user for each."""
        retriever, catalogue = self.retriever, self.catalogue_
        return evaluate(
            retriever,
            catalogue.split.cases(split),
            catalogue.counts,
            split=split,
            ks=ks,
            filter_history=filter_history,
            batch=BATCH,
            progress=progress,
        )

    def add_items(self, items: pl.DataFrame | Mapping[str, Sequence[Any]]) -> list[str]:
        """Let new items be recommended, without retraining; returns their ids. Old ids and scores stay as they are.

        `items` has a column `item_id` and the attributes that the items' vectors are made from. All or nothing: if a
        part fails, the recommender is as it was.
        """
        frame = items if isinstance(items, pl.DataFrame) else pl.DataFrame(dict(items))
        fitted, old = self.fitted, len(self.catalogue_.items)
        tokenizer = fitted.tokenizer.with_items(frame)
        ids = tokenizer.ids
        trie = fitted.trie.extend(ids.closed.take(np.arange(old, len(ids))))
        catalogue = self.catalogue_.with_items(ids.items, frame.drop("item_id"))
        self.fitted_ = dataclasses.replace(fitted, tokenizer=tokenizer, trie=trie)
        self.catalogue_ = catalogue
        return list(ids.items)[old:]

    def save_pretrained(self, path: str | Path) -> None:
        """One folder with all parts and hashes; whole or not at all."""
        save_run(Path(path), Stored(self.recipe, self.seed, self.fitted, self.catalogue_))

    @classmethod
    def from_pretrained(cls, path: str | Path, *, kinds: Kinds | None = None) -> Recommender:
        """Load such a folder; a changed byte or a missing part is an error."""
        stored = load_run(Path(path), kinds or {})
        self = cls(stored.recipe, seed=stored.seed)
        self.fitted_, self.catalogue_ = stored.fitted, stored.catalogue
        return self

    def _rank(self, rows: list[np.ndarray], k: int, options: dict[str, Any]) -> Iterator[Recommendation]:
        for start in range(0, len(rows), BATCH):
            ranked = self.retriever.rank(Ragged.from_rows(rows[start : start + BATCH], np.int64), k, **options)
            for items, scores in zip(ranked.items_UK, ranked.scores_UK):
                yield self._recommendation(items[items >= 0], scores[items >= 0], personal=True)

    def _popular(self, k: int, options: dict[str, Any]) -> Recommendation:
        counts = self.catalogue_.counts
        order = popularity_order(counts)
        if options["allow"] is not None:
            order = order[np.isin(order, options["allow"])]
        if options["deny"] is not None:
            order = order[~np.isin(order, options["deny"])]
        items = order[:k]
        shares = np.log((counts[items] + 0.5) / (counts.sum() + 0.5 * len(counts)))
        return self._recommendation(items, shares, personal=False)

    def _recommendation(self, items: np.ndarray, scores: np.ndarray, *, personal: bool) -> Recommendation:
        catalogue = self.catalogue_
        return Recommendation(
            tuple(catalogue.items.ids(items)),
            tuple(float(s) for s in scores),
            tuple(catalogue.title(i) for i in items),
            personal,
        )
