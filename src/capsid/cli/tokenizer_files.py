"""Folders of `capsid tokenizer`: open a tokenizer's own or a run's, write one, add items to either."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsid.artifacts import folder_kind, new_folder, open_folder, read_json, write_json
from capsid.config import fingerprint
from capsid.data.dataset import item_title
from capsid.inspection.items import OpenTokenizer
from capsid.tokenize.item_tokenizer import KIND, ItemTokenizer
from capsid.vocabulary import Vocabulary

if TYPE_CHECKING:
    import polars as pl

    from capsid.data.dataset import Dataset
    from capsid.evaluate.capsule_report import Drift

TITLES = "titles.json"


def open_tokenizer(path: Path) -> OpenTokenizer:
    """From a tokenizer's folder or a run's; every hash is checked."""
    if folder_kind(path) == KIND:
        open_folder(path, kind=KIND)
        titles = read_json(path / TITLES) if (path / TITLES).exists() else []
        return OpenTokenizer(ItemTokenizer.load(path), titles)
    import polars as pl

    open_folder(path, kind="run")
    frame = pl.read_parquet(path / "items.parquet")
    items = Vocabulary(frame["item_id"])
    titles = [item_title(items, frame, n) for n in range(len(items))]
    return OpenTokenizer(ItemTokenizer.load(path / "tokenizer"), titles)


def checkpoint_beside(out: Path, *about: Any) -> Path:
    """A hidden file beside `out` for a fit to resume from; anything else fitted there has another one."""
    return out.with_name(f".{out.name}.{fingerprint(*about)}.checkpoint")


def add_items(path: Path, attributes: pl.DataFrame, out: Path) -> Drift | None:
    """Write to `out` what stands at `path`, a tokenizer or a run, with more items; how far they lie from the old."""
    names = Vocabulary(str(name) for name in attributes["item_id"])
    if folder_kind(path) == KIND:
        opened = open_tokenizer(path)
        known = len(opened.items)
        opened = replace(opened, tokenizer=opened.tokenizer.with_items(attributes))
        titles = [opened.title(n) for n in range(known)] + [item_title(names, attributes, n) for n in range(len(names))]
        with new_folder(out, kind=KIND) as folder:
            opened.tokenizer.save(folder)
            write_json(folder / TITLES, titles)
            write_json(folder / "about.json", {**read_json(path / "about.json"), "added": len(opened.items) - known})
        return opened.drift(names)
    # Late: a recommender brings torch.
    from capsid.recommender import Recommender

    recommender = Recommender.from_pretrained(path)
    recommender.add_items(attributes)
    recommender.save_pretrained(out)
    return open_tokenizer(out).drift(names)


def save_tokenizer(path: Path, tokenizer: ItemTokenizer, dataset: Dataset, recipe: str, seed: int) -> None:
    """As `ItemTokenizer.save_pretrained`, with titles and where it came from."""
    from capsid import __version__

    with new_folder(path, kind=KIND) as folder:
        tokenizer.save(folder)
        write_json(folder / TITLES, [dataset.title(n) for n in range(len(dataset.items))])
        about = {
            "recipe": recipe,
            "seed": seed,
            "dataset": dataset.name,
            "dataset_fingerprint": dataset.fingerprint,
            "versions": {"capsid": __version__},
        }
        write_json(folder / "about.json", about)
