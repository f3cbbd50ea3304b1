"""Published gains beside ours: the numbers of the file, signs that agree or not, rows that were not run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_tables import USERS, cell, entries

from capsid.base.storage.arrays import save_arrays
from capsid.bench.published import NO_DIFFERENCE, Gain, published, published_table
from capsid.bench.results import LINES, VALUES, arrays_hash
from capsid.bench.rows import Source, number, planned
from capsid.bench.table import markdown
from capsid.recipes import RECIPES


def hits(share: float) -> np.ndarray:
    return (np.arange(USERS) < share * USERS).astype(np.float32)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """tiger hits 20 % of the users, tiger-text 10 %, letter 30 %, diger 10 %, cobra one user more than tiger."""
    shares = {"tiger": 0.2, "tiger-text": 0.1, "letter": 0.3, "diger": 0.1, "cobra": 0.2 + 1 / USERS}
    (tmp_path / "main" / VALUES).mkdir(parents=True)
    for label, share in shares.items():
        line, values = cell(label, 0, share)
        values: Any = {**values, "test/recall@10": hits(share)}
        plain = {**line.to_dict(), "values_hash": arrays_hash(values)}
        save_arrays(tmp_path / "main" / VALUES / f"{line.key}.npz", values)
        with (tmp_path / "main" / LINES).open("a") as file:
            file.write(json.dumps(plain) + "\n")
    return Source(tmp_path)


def test_ours_stands_beside_the_published_gain(source: Source) -> None:
    found = entries(published_table(source), "letter over tiger: Beauty")
    assert found["Recall@10, relative"].values == pytest.approx((0.5,))
    assert found["Recall@10, relative"].paper == pytest.approx(0.0672 / 0.0610 - 1)
    assert found["over tiger-text"].values == pytest.approx((2.0,))
    low, high = (float(end.rstrip("%")) for end in found["95 % interval"].text.split(" to "))
    assert 20 < low < 50 < high < 90
    assert "| letter over tiger: Beauty | 50.0% [10.2] |" in markdown(published_table(source))


def test_signs_are_the_same_opposite_or_unclear(source: Source) -> None:
    table = published_table(source)
    assert entries(table, "letter over tiger: Beauty")["sign"].text == "same"
    assert entries(table, "letter over tiger: Beauty, reproduced")["sign"].text == "opposite"
    assert entries(table, "diger over tiger: Beauty")["sign"].text == "opposite"
    assert entries(table, "cobra over tiger: Beauty")["sign"].text == NO_DIFFERENCE


def test_a_row_that_was_not_run_shows_the_published_gain_alone(source: Source) -> None:
    table = published_table(source)
    for row in ("resid over tiger: ten sets of Amazon 2023", "cobra over tiger: Toys"):
        found = entries(table, row)
        assert found["Recall@10, relative"].values == ()
        assert found["Recall@10, relative"].paper is not None
        assert found["sign"].text == found["95 % interval"].text == ""


def test_the_file() -> None:
    gains, why = published()
    assert len({gain.label for gain in gains}) == len(gains)
    for gain in gains:
        assert {gain.row, gain.against} <= set(RECIPES) | set(planned())
        assert -0.3 < gain.gain < 0.3, gain
        assert gain.source
    assert set(why) <= {gain.row for gain in gains}
    dense = next(gain for gain in gains if gain.row == "capsid-dense")
    with_vectors, without = (number("patching", row, 0) for row in ("capsid-dense", "capsid"))
    assert with_vectors is not None
    assert without is not None
    assert dense.gain == pytest.approx(with_vectors / without - 1)


def test_a_gain_is_given_or_follows_from_two_numbers() -> None:
    entry = {"row": "a", "data": "d", "source": "s"}
    assert Gain.read({**entry, "gain": 0.2}) == Gain("a", "tiger", "amazon-beauty", "d", 0.2, "s")
    assert Gain.read({**entry, "value": 3.0, "baseline": 2.0, "against": "b"}).gain == 0.5
