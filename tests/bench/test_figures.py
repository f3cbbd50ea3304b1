"""Figures from a store with known numbers: each is drawn in both forms, shows its rows, and says so if it cannot."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from bench_world import TINY, Watch, plan_of
from test_tables import cell

from capsid.base.storage.arrays import save_arrays
from capsid.bench.figures import FIGURES, draw
from capsid.bench.paper_tables import TABLES
from capsid.bench.results import LINES, VALUES, arrays_hash
from capsid.bench.rows import Source
from capsid.bench.runner import Options, run_plan
from capsid.bench.store import Place
from capsid.errors import ConfigError

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    folder = tmp_path_factory.mktemp("store")
    more = {
        "length_histogram": {"2": 60, "3": 40},
        "stop_causes": {"confidence": 0.25, "residual": 0.0, "cap": 0.0, "prefix": 0.75},
        "routing_convergence": {"winner_mass": [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]], "same_token": []},
    }
    for label in ("tiger", "capsid", "capsid-bpe", "sasrec"):
        line, values = cell(label, 0, 0.3)
        codes = {"ids/codes": np.array([0, 1, 0, 2, 1]), "ids/offsets": np.array([0, 2, 5])}
        values = {**values, **codes}
        line = dataclasses.replace(line, ids={**line.ids, **more}, values_hash=arrays_hash(values))
        (folder / "main" / VALUES).mkdir(parents=True, exist_ok=True)
        save_arrays(folder / "main" / VALUES / f"{line.key}.npz", values)
        with (folder / "main" / LINES).open("a") as file:
            file.write(json.dumps(line.to_dict()) + "\n")
    costs = {"runs": [{"run": "tiger", "cost": 1.0}, {"run": "capsid-bpe", "cost": 0.9}]}
    (folder / "main" / "decode_cost.json").write_text(json.dumps(costs))
    return Source(folder)


SHOWS = {
    "lengths": "beauty, mean 2.50",
    "stop-causes": "prefix",
    "tiers": "capsid-bpe",
    "collisions": "the paper's",
    "purity-predictability": "tiger",
    "routing-convergence": "depth 2",
    "pareto": "capsid-bpe",
    "usage": "capsid, top 5",
}


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn(source: Source, name: str) -> None:
    svg = draw(name, source)
    assert SHOWS[name] in svg.decode()
    assert draw(name, source) == svg, "equal numbers, equal bytes"
    assert draw(name, source, "png").startswith(b"\x89PNG")


@pytest.fixture(scope="module")
def fitted(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Source:
    """Cells that were really run, so that their lines look as lines do; the labels are those that are drawn."""
    place = Place(tmp_path_factory.mktemp("fitted"), "main")
    capsules = [s for s in TINY if "restarts" not in s] + ["tokenizer.training.steps=3", "merges.min_count=2"]
    plan = plan_of(
        {"method": "popularity", "label": "capsid-bpe"},
        {"method": "rq-kmeans", "label": "tiger", "settings": list(TINY)},
        {"method": "capsid-bpe", "label": "capsid", "settings": capsules, "evaluations": ["test", "positions"]},
        name="main",
        datasets=["amazon-beauty"],
    )
    summary = run_plan(plan, place, {"amazon-beauty": str(shop)}, Options(workers=2), Watch())
    assert summary.count("done") == 3
    costs = {"runs": [{"run": "tiger", "cost": 1.0}, {"run": "capsid", "cost": 0.9}]}
    (place.folder / "decode_cost.json").write_text(json.dumps(costs))
    return Source(place.store)


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_of_cells_that_were_run(fitted: Source, name: str) -> None:
    assert draw(name, fitted).startswith(b"<?xml")


@pytest.mark.parametrize("name", TABLES)
def test_every_table_is_made_of_cells_that_were_run(fitted: Source, name: str) -> None:
    assert TABLES[name](fitted).rows


@pytest.mark.parametrize("name", FIGURES)
def test_nothing_run_nothing_drawn(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="nothing to draw"):
        draw(name, Source(tmp_path))
