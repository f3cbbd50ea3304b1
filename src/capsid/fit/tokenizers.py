"""Tokenizers in folders of their own or in runs: fit one into a folder, open either kind, add items to either kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from capsid import __version__
from capsid.base.config import Kinds, fingerprint
from capsid.base.devices import on_device
from capsid.base.run_options import CheckpointFile, RunOptions
from capsid.base.storage.artifacts import folder_kind, new_folder, open_folder, read_json, reserved, write_json
from capsid.base.vocabulary import Vocabulary
from capsid.data.dataset import Dataset, item_titles
from capsid.encode.large_vectors import MappedVectors, open_vectors, vector_files
from capsid.errors import ConfigError
from capsid.explain.items import OpenTokenizer
from capsid.progress import Progress, silent
from capsid.tokenize.base import Tokenizer, tokenizer_key
from capsid.tokenize.item_tokenizer import KIND, NETWORK_FILES, ItemTokenizer, load_network

if TYPE_CHECKING:
    from capsid.data.split import Holdout
    from capsid.evaluate.capsule_report import Drift
    from capsid.fit.schedule import TokenizerFrom
    from capsid.recipe import Recipe

# Same as in `capsid.stored`, which is not imported here because it loads torch.
RUN = "run"
TITLES = "titles.json"
ABOUT = "about.json"


@dataclass(frozen=True)
class VectorsFit:
    """A tokenizer fitted on a file of vectors, and the file. `key` changes with anything it has learnt."""

    folder: str
    key: str
    tokenizer: ItemTokenizer
    source: MappedVectors

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `capsid vectors fit --json` prints them."""
        items, width = self.source.vectors_ND.shape
        return {"tokenizer": self.folder, "items": items, "width": width, "key": self.key}


def open_tokenizer(path: str | Path, *, kinds: Kinds | None = None) -> OpenTokenizer:
    """Open the tokenizer in a tokenizer's or a run's folder; every hash is checked. Loads no generator.

    `kinds` adds parts from outside the library.
    """
    path = Path(path)
    if folder_kind(path) == KIND:
        open_folder(path, kind=KIND)
        titles = read_json(path / TITLES) if (path / TITLES).exists() else []
        return OpenTokenizer(ItemTokenizer.load(path, kinds), titles)
    open_folder(path, kind=RUN)
    frame = pl.read_parquet(path / "items.parquet")
    items = Vocabulary(frame["item_id"])
    titles = item_titles(items, frame)
    return OpenTokenizer(ItemTokenizer.load(path / "tokenizer", kinds), titles)


def open_parts(path: str | Path, names: Iterable[str] = ()) -> Path:
    """The folder of the tokenizer in a tokenizer's or a run's folder, to read its network and the files `names`.

    Only the hashes of these files are checked, so that this takes as long for millions of items as for a few.
    """
    path = Path(path)
    kind = KIND if folder_kind(path) == KIND else RUN
    folder = path if kind == KIND else path / "tokenizer"
    only = {(folder / name).relative_to(path).as_posix() for name in (*NETWORK_FILES, *names)}
    open_folder(path, kind=kind, only=only)
    return folder


def open_network(path: str | Path) -> Tokenizer:
    """The fitted tokenizer of a tokenizer's or a run's folder, without the ids: it does not grow with the items."""
    return load_network(open_parts(path))


def fit_tokenizer(
    recipe: Recipe,
    dataset: Dataset,
    out: str | Path,
    *,
    seed: int = 0,
    replace: bool = False,
    progress: Progress = silent,
    run: RunOptions | None = None,
) -> ItemTokenizer:
    """Fit a recipe's encoder, tokenizer and merges on a dataset's training part, and write them with the items' titles.

    A killed fit resumes when it is called again with the same recipe, seed and data. An existing tokenizer at `out` is
    an error unless it may be replaced.
    """
    parts, run = recipe.item_tokenizer(), run or RunOptions()
    about = {"dataset": dataset.name, "dataset_fingerprint": dataset.fingerprint}
    with reserved(Path(out), kind=KIND, replace=replace) as place:
        about_ids = (recipe.encoder, recipe.tokenizer, recipe.merges, list(recipe.other_ids), seed, dataset.fingerprint)
        checkpoint = _checkpoint(place, run, *about_ids)
        with on_device(run.device):
            fitted = parts.fit(dataset, seed=seed, progress=progress, checkpoint=checkpoint)
        with on_device(run.device), new_folder(place, kind=KIND) as folder:
            fitted.save(folder)
            write_json(folder / TITLES, [dataset.title(n) for n in range(len(dataset.items))])
            write_json(folder / ABOUT, _about(recipe, seed, about))
        checkpoint.remove()
    return fitted


def tokenizer_source(path: str | Path, dataset: Dataset, holdout: Holdout, *, seed: int) -> TokenizerFrom:
    """The tokenizer that `fit_tokenizer` wrote to `path`, for a fit on the same data with the same seed.

    A fit then ends with the same ids and weights as one that makes its ids itself.
    """
    folder = open_folder(Path(path), kind=KIND)
    about = read_json(folder / ABOUT)
    if about.get("dataset_fingerprint") != dataset.fingerprint:
        raise ConfigError(f"the tokenizer {path} was fitted on other data", hint=f"fit it on {dataset.name}")
    if holdout.kind != "last":
        raise ConfigError(
            f"--tokenizer needs --holdout last, got {holdout.kind}: the tokenizer has seen all but the last two items",
            hint="leave --tokenizer out, so that the fit makes ids from its own training part",
        )
    if about["seed"] != seed:
        raise ConfigError(
            f"the tokenizer {path} was fitted with seed {about['seed']}, this fit has seed {seed}",
            hint=f"--seed {about['seed']}, or fit a tokenizer with --seed {seed}",
        )
    return lambda table, seed, progress: ItemTokenizer.load(folder)


def fit_on_vectors(
    recipe: Recipe,
    vectors: str | Path,
    out: str | Path,
    *,
    seed: int = 0,
    keep_vectors: bool = True,
    replace: bool = False,
    progress: Progress = silent,
    run: RunOptions | None = None,
) -> VectorsFit:
    """Fit a recipe's tokenizer on a file of vectors, which may be larger than memory; its encoder is not used.

    Without `keep_vectors` the folder holds no copy of them, and reports show less. A killed fit resumes.
    """
    if recipe.encoder is None:
        raise ConfigError(
            f"the recipe {recipe.name!r} makes ids without vectors", hint="choose another recipe, such as capsid"
        )
    if recipe.other_ids:
        raise ConfigError(
            f"the recipe {recipe.name!r} makes several ids per item, which is not possible from vectors alone",
            hint="set other_ids= and decoder=beam, or choose capsid",
        )
    vectors, run = Path(vectors), run or RunOptions()
    parts = ItemTokenizer(tokenizer=recipe.tokenizer, collisions=recipe.collisions)
    with reserved(Path(out), kind=KIND, replace=replace) as place:
        source = open_vectors(vectors, progress=progress)
        # Other settings or vectors have another checkpoint, so that no fit resumes from the wrong one.
        files = [[p.name, p.stat().st_size, p.stat().st_mtime_ns] for p in vector_files(vectors)]
        checkpoint = _checkpoint(place, run, recipe.tokenizer, seed, files)
        with on_device(run.device):
            fitted = parts.fit(source.table(), seed=seed, progress=progress, checkpoint=checkpoint)
        with on_device(run.device), new_folder(place, kind=KIND) as folder:
            # A mapped array is copied from file to file, so keeping it uses disk but no memory.
            (fitted if keep_vectors else fitted.without_vectors()).save(folder)
            write_json(folder / ABOUT, _about(recipe, seed, {"vectors": vectors.name}))
        checkpoint.remove()
    return VectorsFit(str(out), tokenizer_key(fitted.tokenizer_), fitted, source)


def add_items(
    path: str | Path,
    attributes: pl.DataFrame,
    out: str | Path,
    *,
    vectors: str | Path | None = None,
    replace: bool = False,
    kinds: Kinds | None = None,
) -> Drift | None:
    """Copy the tokenizer or run at `path` to `out` and add items to it; returns their drift from the old items.

    `attributes` has a column `item_id`; `vectors` is a file with the items' vectors, if the fit read such a file.
    Nothing is retrained, old ids do not change, and `path` is not changed.
    Existing output at `out` is an error unless it may be replaced. `kinds` adds parts from outside the library.
    """
    path = Path(path)
    kind = folder_kind(path) or RUN
    names = Vocabulary(str(name) for name in attributes["item_id"])
    with reserved(Path(out), kind=kind, replace=replace) as place:
        if kind == KIND:
            old = open_tokenizer(path, kinds=kinds)
            grown = old.tokenizer.with_items(attributes, vectors=vectors)
            return _save_grown(path, old, grown, item_titles(names, attributes), place).drift(names)
        # Imported here because a recommender loads torch.
        from capsid.recommender import Recommender

        recommender = Recommender.from_pretrained(path, kinds=kinds)
        recommender.add_items(attributes, vectors=vectors)
        recommender.save_pretrained(place)
        return open_tokenizer(place, kinds=kinds).drift(names)


def _save_grown(
    path: Path, old: OpenTokenizer, tokenizer: ItemTokenizer, new_titles: list[str], out: Path
) -> OpenTokenizer:
    known = len(old.items)
    titles = [old.title(n) for n in range(known)] + new_titles
    grown = OpenTokenizer(tokenizer, titles)
    with new_folder(out, kind=KIND) as folder:
        grown.tokenizer.save(folder)
        write_json(folder / TITLES, titles)
        write_json(folder / ABOUT, {**read_json(path / ABOUT), "added": len(grown.items) - known})
    return grown


def _checkpoint(out: Path, run: RunOptions, *about: Any) -> CheckpointFile:
    """The hidden checkpoint file beside `out`; every different fit has its own."""
    return run.checkpoint(out.with_name(f".{out.name}.{fingerprint(*about)}.checkpoint"))


def _about(recipe: Recipe, seed: int, source: dict[str, str]) -> dict[str, Any]:
    """The origin of a tokenizer."""
    return {"recipe": recipe.name, "seed": seed, **source, "versions": {"capsid": __version__}}
