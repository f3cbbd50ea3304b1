"""From a cell of a plan to a job that can be run: its recipe, its data, its fingerprint.

A fingerprint says what the numbers of a result depend on: the recipe after its settings, the data, the seed and how it
is evaluated. What a recipe says of itself (name, about, paper, deviations), plan and label are no part of it, so a cell
of another plan with the same fingerprint is the same work. The code has a fingerprint of its own, which is recorded.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from capsid.bench.plans import Cell
from capsid.config import fingerprint
from capsid.data.dataset import Dataset
from capsid.errors import ArtifactError, CapsidError
from capsid.recipe import Recipe
from capsid.recipes import get_recipe

TEXTS = ("name", "about", "paper", "deviations")
PACKAGE = Path(__file__).parents[1]
# What changes no number: what a person sees, this room itself, and recipes, which are in the fingerprint as values.
NO_MATTER = ("cli", "bench", "recipes", "serve", "report.py", "__main__.py", "progress.py", "errors.py")


@dataclass(frozen=True)
class DataFacts:
    """What is known of a dataset without holding it. `source` is what `load_dataset` takes."""

    name: str
    source: str
    fingerprint: str
    users: int
    items: int
    interactions: int

    @classmethod
    def of(cls, name: str, source: str, dataset: Dataset) -> DataFacts:
        """The facts of a loaded dataset."""
        sizes = (len(dataset.users), len(dataset.items), dataset.interactions)
        return cls(name, source, dataset.fingerprint, *sizes)


@dataclass(frozen=True)
class Job:
    """A cell that can be run."""

    cell: Cell
    recipe: Recipe
    data: DataFacts

    @functools.cached_property
    def fingerprint(self) -> str:
        """What the numbers depend on, code aside."""
        return cell_fingerprint(self.recipe, self.data.fingerprint, self.cell.seed, self.cell.evaluations, self.cell.ks)

    @property
    def key(self) -> str:
        """A file name for the cell's work, whatever code goes on with it."""
        slug = _slug(f"{self.cell.label}-{self.cell.dataset}-{self.cell.seed}")
        # Two labels may have one slug, but not one slug and one hash.
        return f"{slug}-{fingerprint(self.cell.name, self.fingerprint)[:8]}"

    @property
    def run_name(self) -> str:
        """Where a fitted run is kept: rows of one dataset and seed lie side by side, under their labels."""
        return f"{_slug(self.cell.dataset)}-{self.cell.seed}/{_slug(self.cell.label)}"

    @property
    def steps(self) -> int:
        """How many steps the schedule has."""
        return sum(phase.training.steps for phase in self.recipe.schedule)

    @property
    def sequences(self) -> int:
        """How many sequences it trains on, the same one counted every time: the budget of a method."""
        return sum(phase.training.steps * phase.training.batch_size for phase in self.recipe.schedule)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the process that runs it."""
        told = {"key": self.key, "fingerprint": self.fingerprint}
        return {**told, "cell": asdict(self.cell), "recipe": self.recipe.to_dict(), "data": asdict(self.data)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Job:
        """The job again."""
        try:
            cell: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in content["cell"].items()}
            return cls(Cell(**cell), Recipe.from_dict(content["recipe"]), DataFacts(**content["data"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ArtifactError(f"this is not a cell's job: {error}") from None


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=-]+", "-", text).lstrip(".")[:80]


def values_key(job: Job, code: str) -> str:
    """A file name for the cell's values: what other code finds never replaces values that a line speaks of."""
    return f"{job.key}-{code[:6]}"


def make_job(cell: Cell, data: DataFacts) -> Job:
    """The cell with its recipe; an unknown recipe or setting is an error that names what is allowed."""
    return Job(cell, get_recipe(cell.method).with_settings(cell.settings), data)


def cell_fingerprint(recipe: Recipe, data: str, seed: int, evaluations: tuple[str, ...], ks: tuple[int, ...]) -> str:
    """Changes with anything that changes the numbers."""
    parts = {k: v for k, v in recipe.to_dict().items() if k not in TEXTS}
    return fingerprint(parts, data, seed, sorted(evaluations), list(ks))


def read_again(recipe: Mapping[str, Any], data: str, seed: int, evaluations: Any, ks: Any) -> str | None:
    """The fingerprint that a stored recipe has today: fields that were added since take their defaults.

    None where today's code does not know the stored recipe any more.
    """
    try:
        return cell_fingerprint(Recipe.from_dict(dict(recipe)), data, seed, tuple(evaluations), tuple(ks))
    except (CapsidError, TypeError, ValueError):
        return None


def tokenizer_fingerprint(recipe: Recipe, data: str, seed: int) -> str:
    """What fitted ids depend on: two cells with the same one can share them."""
    return fingerprint(recipe.encoder, recipe.tokenizer, recipe.collisions, recipe.merges, data, seed)


@functools.cache
def code_fingerprint(package: Path = PACKAGE) -> str:
    """Sixteen hex digits of the package's source files that can change a number."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package)
        if inside.parts[0] not in NO_MATTER:
            digest.update(f"{inside.as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
