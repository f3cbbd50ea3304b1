from __future__ import annotations

from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from data_files import write

from capsid.data.check import check_path
from capsid.data.sources import SOURCES, load_dataset
from capsid.errors import DataError


def test_movies_is_the_liked_five_core_in_time_order() -> None:
    data = load_dataset("movies")
    assert (len(data.users), len(data.items), data.interactions) == (659, 2078, 44413)
    assert data.text_fields == ("title", "categories", "director")
    assert data.times is not None
    users = np.repeat(np.arange(len(data.users)), data.sequences.lengths)
    assert (np.diff(data.times)[np.diff(users) == 0] >= 0).all()
    assert np.bincount(data.sequences.values).min() >= 5
    assert data.sequences.lengths.min() >= 5
    matrix = data.items.number("2571")
    assert data.title(matrix) == "The Matrix (1999)"
    assert data.attributes["year"][matrix] == 1999
    assert "Wachowski" in data.attributes["director"][matrix]
    assert "Sci-Fi" in data.attributes["categories"][matrix]


def test_movies_ties_can_keep_file_order() -> None:
    data = load_dataset("movies", ties="file")
    assert data.times is not None
    users = np.repeat(np.arange(len(data.users)), data.sequences.lengths)
    tied = (np.diff(data.times) == 0) & (np.diff(users) == 0)
    numbers = np.array([int(i) for i in data.items])[data.sequences.values]
    assert tied.sum() > 5000
    assert (np.diff(numbers)[tied] > 0).all()  # The file is ordered by film within a user.


def test_movies_ships_small_with_both_licences() -> None:
    folder = Path(str(resources.files("capsid"))) / "data" / "movies"
    sizes = {p.name: p.stat().st_size for p in folder.iterdir()}
    assert sizes["interactions.parquet"] + sizes["items.parquet"] < 2_000_000
    movielens = (folder / "LICENSE-movielens.txt").read_text(encoding="utf-8")
    assert "The user may redistribute the data set, including transformations" in movielens
    assert "CC0 1.0 Universal" in (folder / "LICENSE-wikidata.txt").read_text(encoding="utf-8")


def test_movies_rating_can_be_chosen() -> None:
    assert load_dataset("movies", min_rating=5).interactions < load_dataset("movies").interactions


def test_names_are_a_literal_table() -> None:
    assert set(SOURCES) == {"movies", "planted", "amazon-beauty", "amazon-sports", "amazon-toys"}


def test_unknown_name_lists_names() -> None:
    with pytest.raises(DataError) as caught:
        load_dataset("amazon-beuty")
    assert "did you mean 'amazon-beauty'" in str(caught.value.hint)
    assert "movies" in str(caught.value.hint)


def test_file_and_folder_without_data(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a")
    with pytest.raises(DataError, match="is a file"):
        load_dataset(tmp_path / "x.csv")
    with pytest.raises(DataError, match=r"it holds: x\.csv"):
        load_dataset(tmp_path)


def test_min_rating_needs_ratings(shop: Path) -> None:
    for name in (str(shop), "planted"):
        with pytest.raises(DataError, match="no ratings"):
            load_dataset(name, min_rating=3)


def test_the_page_about_data_is_true(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    blocks = [[line[4:] for line in block.splitlines()] for block in page.split("\n\n") if block.startswith("    ")]
    assert [len(b) for b in blocks] == [5, 5, 5, 6, 6, 5, 5, 1]
    names = ["sequences.txt", "items.jsonl", "interactions.csv", "items.csv", "reviews_X_5.json", "meta_X.json"]
    folders = ["prepared", "prepared", "tables", "tables", "amazon", "amazon"]
    for folder, name, block in zip(folders, names, blocks[1:]):
        write(tmp_path / folder / name, block)
    sizes = {f: load_dataset(tmp_path / f).describe() for f in dict.fromkeys(folders)}
    assert [(s["users"], s["items"], s["interactions"]) for s in sizes.values()] == [(5, 5, 17), (2, 5, 5), (2, 3, 5)]
    assert all(check_path(tmp_path / folder).ok for folder in sizes), "what the page shows can be used"
