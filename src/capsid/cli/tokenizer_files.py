"""A tokenizer opened from its own folder or from a run, and what the verbs ask of it. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from capsid.artifacts import folder_kind, new_folder, open_folder, read_json, write_json
from capsid.data.dataset import item_title
from capsid.evaluate.tokenizer_quality import TokenizerQuality, tokenizer_quality
from capsid.tokenize.item_tokenizer import KIND, ItemTokenizer
from capsid.vocabulary import Vocabulary

if TYPE_CHECKING:
    from capsid.data.dataset import Dataset

TITLES = "titles.json"
EXAMPLES = 5


@dataclass(frozen=True, eq=False)
class OpenTokenizer:
    """`titles` has a text for every item that it was fitted on."""

    tokenizer: ItemTokenizer
    titles: list[str]

    @property
    def items(self) -> Vocabulary:
        """All items that have an id."""
        return self.tokenizer.ids.items

    def title(self, number: int) -> str:
        """What to show a person."""
        return self.titles[number] if number < len(self.titles) else self.items[number]

    def line(self, item: str) -> dict[str, Any]:
        """An item as `export` writes it."""
        ids = self.tokenizer.ids
        row = ids.items.number(item)
        return {
            "item": item,
            "codes": ids.codes[row].tolist(),
            "tokens": ids.tokens[row].tolist(),
            # Of the tokenizers so far none has a confidence.
            "confidences": None,
        }

    def inspect(self, item: str) -> dict[str, Any]:
        """An item's line, its title, and who shares its first codes, depth by depth."""
        ids = self.tokenizer.ids
        row = ids.items.number(item)
        codes_ND = ids.codes.dense()
        levels, same_N = [], np.ones(len(ids), dtype=bool)
        for depth, code in enumerate(ids.codes[row]):
            same_N &= codes_ND[:, depth] == code
            others = [int(n) for n in np.flatnonzero(same_N) if n != row]
            levels.append(
                {
                    "codes": ids.codes[row][: depth + 1].tolist(),
                    "items": len(others) + 1,
                    "examples": [{"item": ids.items[n], "title": self.title(n)} for n in others[:EXAMPLES]],
                }
            )
        return {**self.line(item), "title": self.title(row), "prefixes": levels}

    def quality(self) -> TokenizerQuality:
        """Diagnostics, with the vectors the ids were made from where there are any."""
        tokenizer = self.tokenizer
        return tokenizer_quality(tokenizer.ids, tokenizer.vectors_, tokenizer.tokenizer_.decode)


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
