"""Turns a cell of a plan into a job that can be run: its recipe, its data, its fingerprint.

A fingerprint covers what the numbers of a result depend on: the recipe with its settings, the data, the seed and the
evaluations. It leaves out the recipe's description (name, about, paper, deviations), the plan and the label, so cells
of two plans with the same fingerprint are the same work. The code has its own fingerprint, which is recorded as well.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from capsid.base.config import fingerprint
from capsid.bench.plans import Cell
from capsid.bench.results import LEAVE_ONE_OUT, data_key
from capsid.data.dataset import FILE_ORDER, Dataset
from capsid.data.split import Holdout
from capsid.decode.ranked import validating
from capsid.errors import ArtifactError, CapsidError
from capsid.recipe import Recipe
from capsid.recipes import get_recipe
from capsid.recipes.sizing import DataSize, named_in, sized

TEXTS = ("name", "about", "paper", "deviations")
PACKAGE = Path(__file__).parents[1]
# Modules that change no number: output, this package, and recipes, whose values are in the fingerprint already.
NO_MATTER = ("cli", "bench", "recipes", "serve", "explain", "__main__.py", "progress.py", "errors.py")


@dataclass(frozen=True)
class DataFacts:
    """Facts about a dataset that is not in memory. `source` is the argument of `load_dataset`, `order` that of ties,
    `split` how it is split; `key` changes with all that the numbers of a cell depend on."""

    name: str
    source: str
    fingerprint: str
    users: int
    items: int
    interactions: int
    order: str = FILE_ORDER
    split: str = LEAVE_ONE_OUT

    @classmethod
    def of(cls, name: str, source: str, dataset: Dataset, held: Holdout) -> DataFacts:
        sizes = (len(dataset.users), len(dataset.items), dataset.interactions)
        return cls(name, source, dataset.fingerprint, *sizes, dataset.order, str(held))

    @property
    def key(self) -> str:
        """The fingerprint, with the split unless it is the one that all cells had before there were others."""
        return data_key(self.fingerprint, self.split)


@dataclass(frozen=True)
class Job:
    """A cell that can be run."""

    cell: Cell
    recipe: Recipe
    data: DataFacts

    @functools.cached_property
    def fingerprint(self) -> str:
        """Covers everything that the numbers depend on, except the code."""
        return cell_fingerprint(self.recipe, self.data.key, self.cell.seed, self.cell.evaluations, self.cell.ks)

    @functools.cached_property
    def work(self) -> tuple[object, ...]:
        """What a finished cell must have done to count as this one, apart from its evaluations."""
        return recipe_key(self.recipe), self.data.key, self.cell.seed, self.cell.ks

    @functools.cached_property
    def training(self) -> str:
        """Covers everything that the trained weights depend on: jobs with the same value can share a trained run."""
        return training_fingerprint(self.recipe, self.data.key, self.cell.seed)

    @property
    def key(self) -> str:
        """A file name for the cell's work; it does not depend on the code that continues it."""
        name = slug(f"{self.cell.label}-{self.cell.dataset}-{self.cell.seed}")
        # Two labels may have one slug, but not one slug and one hash.
        return f"{name}-{fingerprint(self.cell.name, self.fingerprint)[:8]}"

    @property
    def run_name(self) -> str:
        """Where a fitted run is kept: runs of one dataset and seed share a folder, named by their labels."""
        return f"{slug(self.cell.dataset)}-{self.cell.seed}/{slug(self.cell.label)}" + (
            f"-order-{self.cell.order}" if self.cell.order else ""
        )

    @property
    def steps(self) -> int:
        return sum(phase.training.steps for phase in self.recipe.schedule)

    @property
    def sequences(self) -> int:
        """How many sequences it trains on, repeats counted: the training budget of a method."""
        return sum(phase.training.steps * phase.training.batch_size for phase in self.recipe.schedule)

    def described(self) -> dict[str, Any]:
        """What a result says about the cell."""
        names = ("plan", "method", "label", "dataset", "seed", "settings")
        about = {name: getattr(self.cell, name) for name in names}
        return {**about, "fingerprint": self.fingerprint, "recipe": self.recipe.to_dict()}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the process that runs it."""
        told = {"key": self.key, "fingerprint": self.fingerprint}
        return {**told, "cell": asdict(self.cell), "recipe": self.recipe.to_dict(), "data": asdict(self.data)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Job:
        """Rebuild the job from `to_dict`'s values."""
        try:
            cell: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in content["cell"].items()}
            return cls(Cell(**cell), Recipe.from_dict(content["recipe"]), DataFacts(**content["data"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ArtifactError(f"this is not a cell's job: {error}") from None


def slug(text: str) -> str:
    """A label or name as a part of a file name."""
    return re.sub(r"[^A-Za-z0-9._=-]+", "-", text).lstrip(".")[:80]


def values_key(job: Job, code: str) -> str:
    """A file name for the cell's values. It names the code, so other code never replaces values of a stored line."""
    return f"{job.key}-{code[:6]}"


def make_job(cell: Cell, data: DataFacts) -> Job:
    """The cell with its recipe, sized as by `capsid fit`. An unknown recipe or setting raises an error that lists the
    allowed values."""
    recipe = get_recipe(cell.method).with_settings(cell.settings)
    size = DataSize(data.users, data.items, data.interactions)
    return Job(cell, sized(recipe, size, named_in(cell.settings)).recipe, data)


def cell_fingerprint(recipe: Recipe, data: str, seed: int, evaluations: tuple[str, ...], ks: tuple[int, ...]) -> str:
    """Changes with anything that changes the numbers."""
    return fingerprint(_parts(recipe.to_dict()), data, seed, sorted(evaluations), list(ks))


def recipe_key(recipe: Recipe) -> str:
    """Changes with every part of a recipe, but not with its description."""
    return fingerprint(_parts(recipe.to_dict()))


def stored_recipe_key(recipe: Mapping[str, Any]) -> str:
    """`recipe_key` of a stored recipe: fields added since then take their defaults. A recipe that the current code
    cannot read is compared as it was written."""
    try:
        return recipe_key(Recipe.from_dict(dict(recipe)))
    except (CapsidError, TypeError, ValueError):
        return fingerprint(_parts(recipe))


def tokenizer_fingerprint(recipe: Recipe, data: str, seed: int) -> str:
    """Covers everything that fitted ids depend on: cells with the same fingerprint can share ids."""
    ids = (recipe.encoder, recipe.tokenizer, recipe.collisions, recipe.merges, *recipe.other_ids)
    return fingerprint(*ids, data, seed)


def training_fingerprint(recipe: Recipe, data: str, seed: int) -> str:
    """Covers everything that trained weights depend on.

    Of the decoder that is only what validation ranks with; a memory that is fitted after training changes none.
    """
    trained = dataclasses.replace(recipe, memory=None, decoder=validating(recipe.decoder))
    return fingerprint(recipe_key(trained), data, seed)


def _parts(recipe: Mapping[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in recipe.items() if name not in TEXTS}


@functools.cache
def code_fingerprint(package: Path = PACKAGE) -> str:
    """Sixteen hex digits of the package's source files that can change a number."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package)
        if inside.parts[0] not in NO_MATTER:
            digest.update(f"{inside.as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
