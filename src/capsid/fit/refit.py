"""Refit a run on newer data: ids of known items stay, weights start from the old ones, and churn is measured.

New items get ids as with `add_items`, so the tokenizer is not fitted again. Items that are no longer in the new data
keep their ids and are retired.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from capsid.base.randomness import numpy_rng
from capsid.base.run_options import RunOptions
from capsid.base.storage.artifacts import MANIFEST, reserved
from capsid.base.vocabulary import Vocabulary
from capsid.data.dataset import Dataset
from capsid.data.split import Holdout
from capsid.data.ties import order_of
from capsid.errors import ConfigError, DataError
from capsid.fit.folder import LAST, RunSummary, outlook, summarise
from capsid.progress import Progress, silent
from capsid.ragged import Ragged
from capsid.recipe import Recipe
from capsid.recipes.sizing import named_in
from capsid.recommender import Recommender
from capsid.stored import KIND, Catalogue

# Training continues from good weights, so it takes a part of the steps, and at the full rate it would first leave them:
# lists would change more than the data did.
SHARE_OF_STEPS = 0.25
SHARE_OF_RATE = 0.3
# Ids are kept, so their makers and the shape of the network cannot change.
MAY_CHANGE = ("schedule", "objective", "decoder")
SAMPLED_USERS = 200
TOP = 10


@dataclass(frozen=True)
class Churn:
    """What a refit changed for items and users.

    `overlap` is the mean share of a user's first `k` items that old and new run have in common, and `same_first` the
    share of users whose first item is the same, over `users` sampled users with the histories of the new data.
    """

    known_items: int
    changed_ids: int
    new_items: int
    retired_items: int
    users: int
    k: int
    overlap: float
    same_first: float


@dataclass(frozen=True)
class Refitted:
    """A refitted run and what it changed."""

    summary: RunSummary
    churn: Churn


def refit(
    path: str | Path,
    dataset: Dataset,
    out: str | Path,
    *,
    settings: Sequence[str] = (),
    holdout: Holdout = LAST,
    replace: bool = False,
    progress: Progress = silent,
    run: RunOptions | None = None,
) -> Refitted:
    """Refit the run at `path` on all of the newer data, and write it to `out`; `path` is not changed.

    A quarter of the old steps is trained, at three tenths of the old learning rate, unless `settings` name other
    numbers. A killed refit resumes.
    """
    began = time.monotonic()
    with reserved(Path(out), kind=KIND, replace=replace) as place:
        old = Recommender.from_pretrained(path)
        _check_unseen(old.catalogue_, holdout)
        _check_order(old.catalogue_, dataset, holdout)
        recipe = continued(old.recipe, settings)
        joined, gone = known_first(dataset, old.catalogue_)
        added = len(joined.items) - len(old.catalogue_.items)
        # Without training nothing is continued. Known items stand first, so ids of one token stay the same.
        start = old.fitted if recipe.schedule else None
        if added and start is not None:
            frame = joined.attributes[-added:].with_columns(item_id=pl.Series(joined.items[-added:]))
            start = dataclasses.replace(start, tokenizer=start.tokenizer.with_items(frame))
        new, split = Recommender(recipe, seed=old.seed), holdout.split(joined)
        known = len(old.catalogue_.items)
        progress.line(f"{known:,} known items keep their ids, {added:,} are new, {len(gone):,} are gone")
        progress.line(outlook(recipe, joined, split))
        # Another old run is another start, so its unfinished work must not be resumed.
        parent = hashlib.sha256((Path(path) / MANIFEST).read_bytes()).hexdigest()[:16]
        work = place.parent / f".{place.name}.work" / parent
        new.fit(joined, split=split, work=work, progress=progress, run=run, start=start)
        new.retire({*gone, *old.catalogue_.retired})
        churn = measured_churn(old, new, joined, retired=len(gone))
        new.save_pretrained(place)
        shutil.rmtree(work, ignore_errors=True)
        with contextlib.suppress(OSError):
            work.parent.rmdir()
    return Refitted(summarise(out, seconds=time.monotonic() - began, reused=False), churn)


def continued(recipe: Recipe, settings: Sequence[str] = ()) -> Recipe:
    """The recipe of a refit: fewer and smaller steps, and no phase that would give items new ids."""
    named = named_in(settings)
    for path in named:
        if path.partition(".")[0] not in MAY_CHANGE:
            raise ConfigError(
                f"a refit keeps ids and weights, so {path} cannot change",
                hint=f"settings of {', '.join(MAY_CHANGE)} can; `capsid fit` makes new ids",
            )
    phases = []
    for number, phase in enumerate(recipe.schedule):
        training = phase.training
        if f"schedule.{number}.training.steps" not in named:
            steps = math.ceil(SHARE_OF_STEPS * training.steps)
            every = math.ceil(SHARE_OF_STEPS * training.validate_every)
            training = dataclasses.replace(training, steps=steps, validate_every=every)
        if f"schedule.{number}.training.learning_rate" not in named:
            training = dataclasses.replace(training, learning_rate=SHARE_OF_RATE * training.learning_rate)
        phases.append(dataclasses.replace(phase, training=training, retokenize=False, adapt=None))
    return dataclasses.replace(recipe, schedule=tuple(phases)).with_settings(settings)


def _check_unseen(old: Catalogue, holdout: Holdout) -> None:
    """Refuse weights that may have seen the held-out items: their metrics would be too good."""
    unseen = holdout.kind in ("last", "time") and str(holdout) == old.split.kind
    if holdout.kind != "none" and not unseen:
        raise ConfigError(
            f"the run was fitted with the split {old.split.kind!r}, so its weights may have seen what --holdout "
            f"{holdout.kind} would hold out",
            hint="refit with --holdout none, or from a run with the same --holdout last or time",
        )


def _check_order(old: Catalogue, dataset: Dataset, holdout: Holdout) -> None:
    """Refuse another order of ties: it would hold out items that the weights may have seen."""
    if holdout.kind != "none" and old.order != dataset.order:
        raise ConfigError(
            f"the run has its ties in the order {old.order!r} and the data in the order {dataset.order!r}, so the "
            "weights may have seen what would be held out",
            hint=f"refit with --ties {order_of(old.order)[0]}, or with --holdout none",
        )


def known_first(dataset: Dataset, old: Catalogue) -> tuple[Dataset, list[str]]:
    """The dataset with the old run's items first, in their old order, then its new ones; and the items it lacks.

    Attributes are the dataset's, and the old ones where it has none.
    """
    new = [item for item in dataset.items if item not in old.items]
    gone = [item for item in old.items if item not in dataset.items]
    if len(gone) == len(old.items):
        raise DataError(
            f"{dataset.name!r} has none of the {len(gone):,} items of the run",
            hint="give the newer data of the same shop; another shop needs `capsid fit`",
        )
    items = Vocabulary([*old.items, *new])
    number_I = items.numbers(dataset.items)
    sequences = Ragged(number_I[dataset.sequences.values], dataset.sequences.offsets)
    attributes = _coalesced(items, dataset, old)
    return dataclasses.replace(dataset, items=items, sequences=sequences, attributes=attributes), gone


def _coalesced(items: Vocabulary, dataset: Dataset, old: Catalogue) -> pl.DataFrame:
    now = dataset.attributes.with_columns(item_id=pl.Series(list(dataset.items), dtype=pl.String))
    before = old.attributes.with_columns(item_id=pl.Series(list(old.items), dtype=pl.String))
    both = pl.DataFrame({"item_id": pl.Series(list(items), dtype=pl.String)})
    both = both.join(now, on="item_id", how="left", maintain_order="left")
    both = both.join(before, on="item_id", how="left", maintain_order="left", suffix=".before")
    kept = [
        pl.coalesce(name, f"{name}.before") if both.schema[name] == both.schema.get(f"{name}.before") else pl.col(name)
        for name in both.columns
        if name != "item_id" and not name.endswith(".before")
    ]
    return both.select(kept)


def measured_churn(old: Recommender, new: Recommender, dataset: Dataset, *, retired: int = 0) -> Churn:
    """Compare ids of known items, and the lists of a sample of users, between two runs."""
    ids, now = old.fitted.tokenizer.ids, new.fitted.tokenizer.ids
    with_items = np.flatnonzero(dataset.sequences.lengths)
    rng = numpy_rng(0, "churn")
    rows = np.sort(rng.permutation(with_items)[:SAMPLED_USERS])
    histories = [dataset.items.ids(dataset.sequences[row]) for row in rows]
    k = min(TOP, len(ids))
    before, after = (r.recommend_many(histories, k, unknown="drop") for r in (old, new))
    # Lists are shorter than k where few items are left.
    shared = [len({*a.items} & {*b.items}) / max(len(a), len(b), 1) for a, b in zip(before, after)]
    first = [a.items[:1] == b.items[:1] for a, b in zip(before, after)]
    return Churn(
        known_items=len(ids),
        changed_ids=sum(ids[item] != now[item] for item in ids.items),
        new_items=len(new.catalogue_.items) - len(ids),
        retired_items=retired,
        users=len(rows),
        k=k,
        overlap=float(np.mean(shared)) if shared else 1.0,
        same_first=float(np.mean(first)) if first else 1.0,
    )
