"""The made shop: two tables that capsid reads, the same every time, with structure, and an earlier state of it."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest

from capsid.data.sources import load_dataset


def test_a_made_shop_can_be_read_and_has_structure(load, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    made = load("_shop")
    count = made.write_shop(tmp_path / "now", items=200, users=400)
    made.write_shop(tmp_path / "again", items=200, users=400)
    for name in ("items.csv", "interactions.csv"):
        assert (tmp_path / "now" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    shop = load_dataset(tmp_path / "now")
    assert (len(shop.items), shop.interactions) == (200, count)
    assert shop.text_fields == ("title", "brand", "categories")
    pairs = Counter((int(a), int(b)) for row in shop.sequences for a, b in itertools.pairwise(row))
    best = Counter({a: max(n for (left, _), n in pairs.items() if left == a) for a, _ in pairs})
    assert sum(best.values()) / sum(pairs.values()) > 0.3, "a product has one that goes with it"


def test_the_earlier_shop_is_a_part_of_the_later_one(load, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    made = load("_shop")
    made.write_shop(tmp_path / "now", items=100, users=100)
    kept = made.write_earlier(tmp_path / "now", tmp_path / "before", items=80)
    now, before = load_dataset(tmp_path / "now"), load_dataset(tmp_path / "before")
    assert list(before.items) == list(now.items)[:80]
    assert before.interactions == kept < now.interactions
    assert before.times.max() < now.times.max()


def test_a_command_that_fails_ends_the_benchmark(load, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    shop = load("shop")
    with pytest.raises(SystemExit, match="there is no recipe 'no-such'"):
        shop.Shop(tmp_path).call("fit", "fit", "no-such", "--data", "movies", "--out", "run")
