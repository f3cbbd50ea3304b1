from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capsid.base.vocabulary import Vocabulary
from capsid.data.dataset import Dataset, k_core
from capsid.data.mapped import read_mapped, write_mapped
from capsid.data.sources import as_dataset, load_dataset
from capsid.data.split import temporal_split
from capsid.data.streaming import import_dataset
from capsid.data.ties import tied, with_order
from capsid.errors import ConfigError, DataError
from capsid.ragged import Ragged

ITEMS = "abcdefgh"


def dataset(rows: list[list[int]], times: list[list[int]] | None) -> Dataset:
    return Dataset(
        "d",
        Vocabulary(f"u{i}" for i in range(len(rows))),
        Vocabulary(ITEMS),
        Ragged.from_rows(rows),
        pl.DataFrame({"title": list(ITEMS)}),
        times=None if times is None else Ragged.from_rows(times, np.int64).values,
    )


def write(path: Path, *lines: str) -> None:
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    folder.mkdir()
    write(folder / "sequences.txt.gz", "u1 a b c d e f", "u2 a b c", "u3 h g f e d c")
    write(folder / "items.jsonl.gz", *(f'{{"item_id": "{i}", "title": "{i}"}}' for i in ITEMS))
    write(folder / "days.txt.gz", "u1 0 0 0 0 0 9", "u2 0 1 2", "u3 0 0 0 0 4 4")
    return folder


@settings(deadline=None, max_examples=60)
@given(
    users=st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 7)), max_size=9), min_size=1, max_size=5),
    seed=st.integers(0, 3),
)
def test_only_tied_items_change_places(users: list[list[tuple[int, int]]], seed: int) -> None:
    users = [sorted(user, key=lambda event: event[0]) for user in users]
    data = dataset([[i for _, i in user] for user in users], [[t for t, _ in user] for user in users])
    mixed = with_order(data, "shuffle", seed)
    assert mixed.times is data.times
    assert mixed.order == f"shuffle {seed}"
    for row, user in enumerate(users):
        found = list(zip((t for t, _ in user), mixed.sequences[row].tolist()))
        assert sorted(found) == sorted(user)
    # The order in the file is forgotten: another one gives the same items.
    backwards = dataset([[i for _, i in sorted(user, key=lambda e: (e[0], -e[1]))] for user in users], None)
    again = with_order(replace(backwards, times=data.times), "shuffle", seed)
    assert again.sequences == mixed.sequences


def test_the_order_is_that_of_ids_and_not_of_numbers() -> None:
    # A change here changes the targets of every stored result whose ties were shuffled.
    data = with_order(dataset([list(range(8)), list(range(8))], [[0] * 8, [0] * 4 + [1] * 4]))
    assert ["".join(data.items.ids(row)) for row in data.sequences] == ORDER_0
    other = Vocabulary(reversed(ITEMS))
    numbers = other.numbers(data.items)
    renumbered = replace(data, items=other, sequences=Ragged(numbers[data.sequences.values], data.sequences.offsets))
    assert ["".join(other.ids(row)) for row in with_order(renumbered).sequences] == ORDER_0
    assert with_order(data, "shuffle", 1).sequences != data.sequences


ORDER_0 = ["ahdfgbce", "dcabghef"]


def test_a_tie_ends_with_each_item_equally_often() -> None:
    data = with_order(dataset([[0, 1, 2, 3]] * 4000, [[0] * 4] * 4000))
    last = np.bincount(data.sequences.values[3::4], minlength=4)[:4]
    assert (abs(last - 1000) < 120).all()


def test_days_order_ties_and_nothing_else(shop: Path) -> None:
    file, mixed = load_dataset(shop, ties="file"), load_dataset(shop)
    assert (file.order, mixed.order, file.days) == ("file", "shuffle 0", True)
    assert tied(file).tolist() == [
        False,
        True,
        True,
        True,
        True,
        False,
        *[False] * 3,
        *[False, True, True, True, False, True],
    ]
    assert mixed.items.ids(mixed.sequences[1]) == ["a", "b", "c"]
    assert mixed.items.ids(mixed.sequences[0])[-1] == "f"
    assert sorted(mixed.items.ids(mixed.sequences[0])[:-1]) == list("abcde")
    assert len({file.fingerprint, mixed.fingerprint, load_dataset(shop, order_seed=1).fingerprint}) == 3
    with pytest.raises(DataError, match="no dates, so it cannot be split by time"):
        temporal_split(mixed)
    (shop / "days.txt.gz").unlink()
    bare = load_dataset(shop)
    assert (bare.order, bare.times, bare.fingerprint) == ("file", None, file.fingerprint)


def test_a_dataset_without_times_has_no_ties_to_shuffle(shop: Path) -> None:
    (shop / "days.txt.gz").unlink()
    with pytest.raises(DataError, match="knows only an order") as error:
        load_dataset(shop, ties="shuffle")
    assert "days.txt.gz" in str(error.value.hint)
    with pytest.raises(ConfigError, match="shuffle or file, got 'shufle'"):
        load_dataset(shop, ties="shufle")


def test_days_are_kept_by_imports(shop: Path, tmp_path: Path) -> None:
    wanted = load_dataset(shop)
    for mapped in (False, True):
        out = tmp_path / f"out-{mapped}"
        import_dataset(shop, out, mapped=mapped)
        assert load_dataset(out, ties="file").fingerprint == load_dataset(shop, ties="file").fingerprint
        again = load_dataset(out)
        assert (again.fingerprint, again.days, again.order) == (wanted.fingerprint, True, "shuffle 0")
    assert k_core(wanted, 2).days


def test_mapped_histories_are_shuffled_as_those_in_memory(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mapped(load_dataset(shop, ties="file"), tmp_path / "mapped")
    monkeypatch.setattr("capsid.ragged.BLOCK", 4)
    mapped = with_order(read_mapped(tmp_path / "mapped"))
    assert mapped.sequences == load_dataset(shop).sequences


def test_frames_are_shuffled_and_datasets_keep_their_order(shop: Path) -> None:
    frame = pl.DataFrame({"user": ["u1"] * 6, "item": list("abcdef"), "timestamp": [0, 0, 0, 0, 0, 9]})
    found, wanted = as_dataset(frame), load_dataset(shop)
    assert found.items.ids(found.sequences[0]) == wanted.items.ids(wanted.sequences[0])
    file = load_dataset(shop, ties="file")
    assert as_dataset(file) is file


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["u1 0 0 0 0 0 9", "u2 0 1", "u3 0 0 0 0 4 4"], "days.txt.gz:2: user 'u2' has 2 times for 3 items"),
        (["u1 0 0 0 0 0 9", "u2 0 5 2", "u3 0 0 0 0 4 4"], "days.txt.gz:2: user 'u2' has items that are not in time"),
        (["u1 0 0 0 0 0 9", "u3 0 0 0 0 4 4"], "days.txt.gz:2: the line is of user 'u3' where user 'u2' is expected"),
        (["u1 0 0 0 0 0 9", "u2 0 1 2"], "days.txt.gz:3: user 'u3' has no line"),
        (
            ["u1 0 0 0 0 0 9", "u2 0 one 2", "u3 0 0 0 0 4 4"],
            "days.txt.gz:2: a time cannot be read: '0 one 2' (user 'u2')",
        ),
        (["u1 0 0 0 0 0 9", "u2 0 1 2", "u3 0 0 0 0 4 4", "u4 0"], "days.txt.gz:4: user 'u4' is not in the sequences"),
    ],
)
def test_days_that_do_not_fit(shop: Path, tmp_path: Path, lines: list[str], message: str) -> None:
    write(shop / "days.txt.gz", *lines)
    with pytest.raises(DataError) as error:
        import_dataset(shop, tmp_path / "out")
    assert message in str(error.value)
    assert [p.name for p in tmp_path.iterdir()] == ["shop"]
