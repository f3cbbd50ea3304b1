"""Loads any dataset: a built-in name, a benchmark name, or a folder in any supported format.

The table of names is literal: there is no discovery by import or guessing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from capsid.data.amazon import CATEGORIES, is_amazon, load_benchmark, read_amazon
from capsid.data.dataset import Dataset, k_core
from capsid.data.findings import Findings
from capsid.data.mapped import is_mapped, read_mapped
from capsid.data.planted import planted_dataset
from capsid.data.prepared import is_prepared, read_prepared
from capsid.data.table_options import PLAIN, ROWS, TableOptions
from capsid.data.tables import is_tables, read_tables
from capsid.data.ties import check_ties, with_order
from capsid.errors import DataError, nearest
from capsid.progress import Progress, silent

FOLDER = Path(__file__).parent / "movies"
LIKED = 4.0
CORE = 5
FORMS = (
    "sequences.txt.gz with items.jsonl.gz, interactions.parquet, .csv, .tsv or .jsonl (and items.*), a folder "
    "interactions/ of such files, what `capsid data import --mapped` wrote, "
    "or reviews_X_5.json.gz with meta_X.json.gz"
)
_FORMATS: Mapping[str, tuple[Callable[[Path], bool], str]] = {
    "mapped": (is_mapped, "a mapped folder"),
    "prepared": (is_prepared, "sequences with items"),
    "tables": (is_tables, "a table of interactions"),
    "amazon": (is_amazon, "a file of Amazon reviews"),
}


def read_movies(min_rating: float | None = None, progress: Progress = silent) -> Dataset:
    """Films that users liked, in time order (file order breaks ties), then the 5-core.

    MovieLens latest-small with facts from Wikidata. The licence files are in `movies/`: research use, no commercial use
    without permission.
    """
    findings = Findings()
    everything = read_tables(FOLDER, findings, min_rating=LIKED if min_rating is None else min_rating)
    findings.raise_first("movies")
    liked = replace(everything, name="movies", text_fields=("title", "categories", "director"))
    core = k_core(liked, CORE)
    return replace(core, provenance={**core.provenance, "source": "MovieLens latest-small, Wikidata"})


@dataclass(frozen=True)
class Source:
    """A dataset with a built-in name."""

    about: str
    needs_download: bool
    load: Callable[[float | None, Progress], Dataset]


def _planted(min_rating: float | None, progress: Progress) -> Dataset:
    return planted_dataset() if min_rating is None else _no_ratings("planted")


def _benchmark(name: str) -> Source:
    about = f"Amazon-2014 {CATEGORIES[name].replace('_', ' ')}, 5-core as published"
    return Source(about, True, lambda rating, progress: load_benchmark(name, min_rating=rating, progress=progress))


SOURCES: Mapping[str, Source] = {
    "movies": Source("films that 659 people liked, with titles, genres and directors (built in)", False, read_movies),
    "planted": Source("synthetic items in a tree, whose best ids are known (for tests)", False, _planted),
    "amazon-beauty": _benchmark("amazon-beauty"),
    "amazon-sports": _benchmark("amazon-sports"),
    "amazon-toys": _benchmark("amazon-toys"),
}


def load_dataset(
    name_or_path: str | Path,
    *,
    min_rating: float | None = None,
    ties: str | None = None,
    order_seed: int = 0,
    options: TableOptions = PLAIN,
    findings: Findings | None = None,
    progress: Progress = silent,
) -> Dataset:
    """The dataset of that name or in that folder. Ratings below `min_rating` are left out.

    `options` say how a folder of tables is read; rows that they skip are in `findings`.

    `ties`: interactions with equal times are put in the order of a hash ("shuffle", drawn with `order_seed`) or stay in
    that of the file ("file"); without it they are shuffled wherever times are known.
    """
    check_ties(ties)
    source = SOURCES.get(str(name_or_path))
    if source is not None:
        _check_tables(options, str(name_or_path), "tables" if options == PLAIN else "built in")
        return with_order(source.load(min_rating, progress), ties, order_seed)
    findings, folder = findings or Findings(), existing_folder(name_or_path)
    dataset = read_folder(folder, findings, min_rating=min_rating, options=options, progress=progress)
    skipped = findings.skip(ROWS) if options.skip_bad else 0
    findings.raise_first(str(name_or_path))
    if not dataset.interactions and skipped:
        raise DataError(f"{name_or_path}: all {skipped:,} rows were skipped", hint="see `capsid data check`")
    findings.tell(progress)
    return with_order(dataset, ties, order_seed)


def as_dataset(
    data: Dataset | str | Path | Any = None,
    *,
    interactions: Any = None,
    items: Any = None,
    progress: Progress = silent,
) -> Dataset:
    """A dataset from a dataset, a name, a folder, or frames of pandas, polars or Arrow.

    Interactions with equal times are shuffled, except those of a dataset, which keeps the order that it has.
    """
    if (data is None) == (interactions is None):
        raise DataError(
            "no data was given" if data is None else "both data and interactions were given",
            hint="pass a dataset, a name, a folder, or interactions=frame and optionally items=frame",
        )
    if isinstance(data, Dataset):
        return data
    if isinstance(data, str | Path):
        return load_dataset(data, progress=progress)
    return with_order(Dataset.from_frames(data if interactions is None else interactions, items))


def read_folder(
    folder: Path,
    findings: Findings,
    *,
    min_rating: float | None = None,
    options: TableOptions = PLAIN,
    progress: Progress = silent,
) -> Dataset:
    """Read a folder in any supported format, tolerantly: problems go to `findings`."""
    form = form_of(folder)
    _check_tables(options, str(folder), form)
    if form == "tables":
        return read_tables(folder, findings, min_rating=min_rating, options=options)
    if form == "amazon":
        return read_amazon(folder, findings, min_rating=min_rating, progress=progress)
    if min_rating is not None:
        return _no_ratings(str(folder))
    return read_mapped(folder) if form == "mapped" else read_prepared(folder, findings)


def form_of(folder: Path) -> str:
    """The format of a folder, by the names of its files. Two are an error, because one of them would be ignored."""
    found = [form for form, (fits, _) in _FORMATS.items() if fits(folder)]
    if len(found) > 1:
        message = f"{folder} holds two datasets: one is {_FORMATS[found[0]][1]}, the other {_FORMATS[found[1]][1]}"
        raise DataError(message, hint="give each dataset a folder of its own")
    if found:
        return found[0]
    held = sorted(p.name for p in folder.iterdir())[:5]
    raise DataError(
        f"{folder} holds no dataset that capsid can read (it holds: {', '.join(held) or 'nothing'})",
        hint=f"a data folder holds {FORMS}",
    )


def existing_folder(name_or_path: str | Path) -> Path:
    """The folder; if it does not exist, an error that suggests similar names."""
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return path
    names = nearest(str(name_or_path), SOURCES)
    if path.exists():
        raise DataError(
            f"{path} is a file; --data takes a folder or a name", hint=f"a data folder holds {FORMS}; {names}"
        )
    raise DataError(
        f"there is no dataset and no folder called {str(name_or_path)!r}", hint=f"{names}, or the path of a folder"
    )


def _check_tables(options: TableOptions, what: str, form: str) -> None:
    if form != "tables" and options.needed is not None:
        raise DataError(
            f"{options.needed} is for folders of tables, and {what} is none", hint=f"leave {options.needed} out"
        )


def _no_ratings(what: str) -> Dataset:
    raise DataError(
        f"{what} has no ratings, so there is nothing to compare with --min-rating", hint="leave --min-rating out"
    )
