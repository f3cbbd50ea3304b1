"""The user-facing recommender: fit, recommend, evaluate, save, load. It takes and returns the user's own item ids.

A thin facade: other packages do the work. A fitted recommender does not need the training data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from capsid.answering import BATCH, Answerer, Query, Recommendation
from capsid.base.config import Kinds, fingerprint
from capsid.base.devices import on_device
from capsid.base.run_options import RunOptions
from capsid.data.columns import to_polars
from capsid.data.dataset import Dataset
from capsid.data.item_table import ItemTable
from capsid.data.sources import as_dataset
from capsid.data.split import Cases, Split, leave_one_out
from capsid.decode.ranked import Retriever
from capsid.errors import ConfigError, DataError, NotFittedError
from capsid.evaluate.evaluator import Evaluation, evaluate
from capsid.evaluate.metrics import check_k
from capsid.progress import Progress, automatic, silent
from capsid.recipe import Recipe
from capsid.recipes import get_recipe
from capsid.recipes.sizing import DataSize, Sizing, named_in, sized
from capsid.stored import Catalogue, Fitted, Stored, load_run, save_run

if TYPE_CHECKING:
    from capsid.explain.search import Explanation
    from capsid.fit.schedule import TokenizerFrom


Sizes = Literal["auto", "exact"]


class Recommender:
    """A recipe and, after `fit`, everything it learnt. With `sizes="exact"` the recipe is used as it is. With "auto"
    its sizes are fitted to the data (`recipes.sizing`), because recipes are written for large data, and `recipe` then
    has the values that were used."""

    def __init__(self, recipe: Recipe, *, seed: int = 0, sizes: Sizes = "exact") -> None:
        self.recipe = recipe
        self.seed = seed
        # The device of the weights, as given to `fit` or `from_pretrained`.
        self.device = "cpu"
        # What sizes are fitted from, and the paths of those that stay.
        self._written = (recipe, frozenset[str]()) if _auto(sizes) else None
        self._answerer: tuple[tuple[Fitted, Catalogue], Answerer] | None = None
        # The last evaluation of each split, with and without filter, of what is fitted now.
        self._evaluations: dict[tuple[str, bool], Evaluation] = {}

    @classmethod
    def from_recipe(
        cls,
        recipe: str | Recipe,
        *,
        seed: int = 0,
        settings: Iterable[str] = (),
        vectors: str | Path | None = None,
        sizes: Sizes = "auto",
    ) -> Recommender:
        """From a recipe or its name; `settings` are `part.field=value` texts, `vectors` is a file of your item vectors.
        With `sizes="auto"`, sizes that no setting names are fitted to the data; with "exact" they stay."""
        given = tuple(settings)
        chosen = get_recipe(recipe) if isinstance(recipe, str) else recipe
        if vectors is not None:
            chosen = chosen.with_vectors(vectors)
        self = cls(chosen.with_settings(given), seed=seed)
        if _auto(sizes):
            self._written = self.recipe, named_in(given)
        return self

    def size_to(self, dataset: Dataset) -> Sizing | None:
        """Fit the recipe's sizes to the dataset, as `fit` does first; None if the recipe is used as it is."""
        if self._written is None:
            return None
        found = sized(self._written[0], DataSize.of(dataset), self._written[1])
        self.recipe = found.recipe
        return found

    @property
    def fitted(self) -> Fitted:
        """Everything that was learnt; an error before `fit`."""
        if not hasattr(self, "fitted_"):
            raise NotFittedError("this recommender is not fitted", hint="call fit, or load one with from_pretrained")
        return self.fitted_

    def fit(
        self,
        data: Dataset | str | Path | Any = None,
        *,
        interactions: Any = None,
        items: Any = None,
        split: Split | None = None,
        work: Path | None = None,
        progress: Progress | None = None,
        run: RunOptions | None = None,
        tokenizer_from: TokenizerFrom | None = None,
        start: Fitted | None = None,
    ) -> Recommender:
        """Fit on a dataset (default split: leave one out). With `work`, calling fit again resumes a killed fit.

        `data` is a dataset, a name or a folder. Alternatively, pass `interactions` (user, item, timestamp) and `items`
        as pandas, polars or Arrow frames, or as mappings of columns.

        `tokenizer_from` supplies a tokenizer already fitted with the same parts, data and seed. `start` is an earlier
        fit to continue from, whose ids are kept (`capsid.fit.refit`). Progress is shown on a terminal and in
        notebooks; `capsid.progress.silent` turns it off.
        """
        # Imported here, so that serving a fitted recommender never loads training code.
        from capsid.fit.schedule import Fit

        progress, run = automatic() if progress is None else progress, run or RunOptions()
        self.device = run.device
        dataset = as_dataset(data, interactions=interactions, items=items, progress=progress)
        if (sizing := self.size_to(dataset)) is not None and sizing.changes:
            progress.line(str(sizing))
        split = split or leave_one_out(dataset)
        table = ItemTable.from_training(dataset, split.train)
        if work is not None:
            work = Path(work) / self.fingerprint(dataset, split)
        self._evaluations = {}
        with on_device(self.device):
            fit = Fit(self.recipe, table, split, self.seed, work, progress, run, tokenizer_from, start)
            self.fitted_ = fit.run()
        self.catalogue_ = Catalogue(
            dataset.name,
            dataset.fingerprint,
            dataset.users,
            dataset.items,
            dataset.attributes,
            table.counts,
            split,
            order=dataset.order,
        )
        return self

    def fingerprint(self, dataset: Dataset, split: Split) -> str:
        """Changes with recipe, seed, data or split. The split counts: stages of another one may have seen its cases."""
        return fingerprint(self.recipe, self.seed, dataset.fingerprint, split.fingerprint)

    @property
    def retriever(self) -> Retriever:
        """The search over this recommender's items."""
        return Retriever(self.fitted.model, self.recipe.decoder)

    @property
    def answerer(self) -> Answerer:
        """Answers queries for the current state of the recommender; rebuilt after changes."""
        now = (self.fitted, self.catalogue_)
        if self._answerer is None or self._answerer[0] != now:
            self._answerer = now, Answerer(self.retriever, self.catalogue_)
        return self._answerer[1]

    def recommend(
        self,
        history: Sequence[str],
        k: int = 10,
        *,
        filter_history: bool = True,
        allow: Sequence[str] | None = None,
        deny: Sequence[str] | None = None,
        unknown: Literal["raise", "drop"] = "raise",
    ) -> Recommendation:
        """The k best next items after a history of item ids, oldest first; see `recommend_many`."""
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
        unknown: Literal["raise", "drop"] = "raise",
    ) -> list[Recommendation]:
        """The k best next items after each history; the search itself applies `allow` and `deny`. `unknown` says what
        to do with unknown ids: "raise" or "drop". A history without known items gets the most popular items."""
        queries = [_query(history, k, filter_history, allow, deny, unknown) for history in histories]
        with on_device(self.device):
            return self.answerer.answer(queries)

    def explain(
        self,
        history: Sequence[str],
        k: int = 10,
        *,
        filter_history: bool = True,
        allow: Sequence[str] | None = None,
        deny: Sequence[str] | None = None,
        prefix: Sequence[int] = (),
        influence: bool = True,
    ) -> Explanation:
        """The result of `recommend` with its search: which prefixes were scored, kept and pruned, and what mattered.
        Ids must begin with the tokens of `prefix`. `influence` measures the effect of leaving out each history item."""
        from capsid.explain.search import explain

        query = _query(history, k, filter_history, allow, deny)
        with on_device(self.device):
            return explain(self.answerer, query, prefix=prefix, influence=influence)

    def predict(
        self, split: str = "test", k: int = 50, *, filter_history: bool = True, progress: Progress = silent
    ) -> Iterator[tuple[str, list[str], list[float]]]:
        """User, ranked items and scores for every case of a split."""
        check_k(k)
        retriever, catalogue, cases = self.retriever, self.catalogue_, self.held_out(split)
        every = range(len(cases))
        found = retriever.rank_batches(cases.histories, every, k, filter_history=filter_history, batch=BATCH)
        for rows_B, ranked in found:
            for row, items, scores in zip(rows_B, ranked.items_UK, ranked.scores_UK):
                kept = items >= 0
                user = catalogue.users[int(cases.users[row])]
                yield user, catalogue.items.ids(items[kept]), [float(s) for s in scores[kept]]
            progress.update(f"{split}: {rows_B[-1] + 1:,}/{len(cases):,} users")

    def evaluate(
        self,
        split: str = "test",
        *,
        ks: tuple[int, ...] = (5, 10),
        filter_history: bool = True,
        progress: Progress | None = None,
    ) -> Evaluation:
        """Metrics on a split; each metric also has one value per user. Progress is shown as in `fit`."""
        retriever, catalogue = self.retriever, self.catalogue_
        with on_device(self.device):
            found = evaluate(
                retriever,
                self.held_out(split),
                catalogue.counts,
                split=split,
                ks=ks,
                filter_history=filter_history,
                batch=BATCH,
                progress=automatic() if progress is None else progress,
            )
        self._evaluations[split, filter_history] = found
        return found

    def held_out(self, split: str) -> Cases:
        """The cases of a split; an error if the run held out none."""
        cases = self.catalogue_.split.cases(split)
        if not len(cases):
            raise DataError(
                f"this run held out no items for {split}, so it cannot be measured",
                hint="fit with --holdout last, time or cold to measure; none is for production",
            )
        return cases

    def add_items(
        self, items: pl.DataFrame | Mapping[str, Sequence[Any]], *, vectors: str | Path | None = None
    ) -> list[str]:
        """Add new items without retraining and return their ids. Existing ids and scores do not change. `items` has a
        column `item_id` and the attributes that item vectors are made from; `vectors` is a file with their vectors, if
        the recommender was fitted on such a file. If any step fails, it stays unchanged."""
        frame = to_polars(items)
        fitted, old = self.fitted, len(self.catalogue_.items)
        with on_device(self.device):
            tokenizer = fitted.tokenizer.with_items(frame, vectors=vectors)
            grown = fitted.with_items(tokenizer, None if self.recipe.dense is None else self.recipe.dense.block)
        items_now = tokenizer.ids.items
        self.catalogue_ = self.catalogue_.with_items(items_now, frame.drop("item_id"))
        self.fitted_ = grown
        self._evaluations = {}
        return list(items_now)[old:]

    def retire(self, items: Iterable[str]) -> None:
        """Stop recommending these items until `restore`. Histories may still contain them."""
        self.catalogue_ = self.catalogue_.with_retired(self.catalogue_.retired | self._known(items))

    def restore(self, items: Iterable[str]) -> None:
        """Allow retired items to be recommended again."""
        self.catalogue_ = self.catalogue_.with_retired(self.catalogue_.retired - self._known(items))

    def _known(self, items: Iterable[str]) -> set[str]:
        return {i for i in _item_ids(items, "items") if self.catalogue_.items.number(i) >= 0}

    def save_pretrained(self, path: str | Path) -> None:
        """Save everything to one folder with hashes, atomically, with a model card (README.md). The card has the
        metrics that `evaluate` of this object has measured."""
        from capsid.explain.model_card import NAME, model_card

        stored = Stored(self.recipe, self.seed, self.fitted, self.catalogue_)
        with on_device(self.device):
            save_run(Path(path), stored, texts={NAME: model_card(stored, list(self._evaluations.values()))})

    @classmethod
    def from_pretrained(cls, path: str | Path, *, kinds: Kinds | None = None, device: str = "cpu") -> Recommender:
        """Load a saved folder to a device; a changed byte or missing file is an error. `kinds` adds parts that are not
        built in."""
        with on_device(device):
            stored = load_run(Path(path), kinds or {})
        self = cls(stored.recipe, seed=stored.seed)
        self.device = device
        self.fitted_, self.catalogue_ = stored.fitted, stored.catalogue
        return self


def _query(
    history: Any, k: int, filter_history: bool, allow: Any, deny: Any, unknown: Literal["raise", "drop"] = "raise"
) -> Query:
    allowed = None if allow is None else _item_ids(allow, "allow")
    denied = () if deny is None else _item_ids(deny, "deny")
    return Query(_item_ids(history, "a history"), k, filter_history, allowed, denied, unknown)


def _auto(sizes: Sizes) -> bool:
    if sizes not in ("auto", "exact"):
        raise ConfigError(f"sizes must be auto or exact, got {sizes!r}", hint="auto fits them to the data")
    return sizes == "auto"


def _item_ids(ids: Any, what: str) -> tuple[str, ...]:
    """A user's own ids as texts; numbers become text, as in a file."""
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise DataError(f"{what} must be a list of item ids, got {ids!r:.80}", hint="pass [id, id, ...]")
    try:
        return tuple(str(i) for i in ids)
    except ValueError:  # Python refuses to print a whole number of more than 4,300 digits.
        raise DataError(f"{what} has a number that is too long for an item id", hint="pass ids as text") from None
