"""`capsid fit` without a recipe, and how much work it does."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from cli_world import TINY, Answer, capsid, contents

from capsid.base.storage.arrays import load_arrays
from capsid.fit.effort import recommended as recommended_recipes
from capsid.fit.effort import with_effort
from capsid.recipes import RECIPES, RECOMMENDED, get_recipe

# Vectors without a language model, and a network for 64 items.
VECTORS = ["--set", "encoder=hashing", "--set", "encoder.dim=8"]
SMALL = [*VECTORS, *(part for s in TINY if not s.startswith("tokenizer") for part in ("--set", s))]


@pytest.fixture(scope="module")
def recommended(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("recommended") / "run"
    answer = capsid("fit", "--data", shop, "--out", out, *VECTORS)
    assert answer.code == 0, answer.err
    assert "this run minus it" in answer.out
    assert "better than all three" in answer.out or "as good as this run" in answer.out
    return out


def test_the_recommended_recipe_is_fitted_and_compared(shop: Path, recommended: Path) -> None:
    assert json.loads((recommended / "recipe.json").read_text())["name"] == RECOMMENDED
    answer = capsid("fit", "--data", shop, "--out", recommended, *VECTORS, "--json")
    assert "already finished" in answer.err
    rows = answer.json["baselines"]
    assert [row["name"] for row in rows] == ["popularity", "memory", "item-knn"]
    own = load_arrays(recommended / "evaluations" / "test-filtered.npz")["recall@10"]
    for row in rows:
        values = load_arrays(Path(row["run"]) / "evaluations" / "test-filtered.npz")["recall@10"]
        assert row["recall"] == pytest.approx(values.mean())
        assert row["difference"]["difference"] == pytest.approx((own - values).mean())
        low, high = row["difference"]["low"], row["difference"]["high"]
        assert row["verdict"] == ("" if low > 0 else "better than this run" if high < 0 else "as good as this run")


def kept_trial(answer: Answer) -> tuple[dict[str, float], str]:
    """What every trial validated, and which was kept."""
    (line,) = (text for text in answer.err.splitlines() if text.startswith("valid ndcg@10: "))
    *trials, kept = line.removeprefix("valid ndcg@10: ").split("; ")
    return {name: float(value) for name, value in (t.rsplit(" ", 1) for t in trials)}, kept.removeprefix("kept: ")


def test_standard_tries_three_penalties_and_best_a_network_too(shop: Path, tmp_path: Path) -> None:
    answer = capsid("fit", "--data", shop, "--out", tmp_path / "standard", *VECTORS)
    values, kept = kept_trial(answer)
    assert list(values) == [f"ease-memory, penalty {p}" for p in (50, 200, 1000)]
    assert values[kept] == max(values.values())
    best = list(recommended_recipes("best"))
    assert best == [*values, *(f"sasrec-memory, dropout {rate}" for rate in (0.2, 0.4, 0.6))]
    assert list(recommended_recipes("quick")) == [RECOMMENDED]


def test_it_is_served_and_explained_like_any_run(recommended: Path) -> None:
    assert len(capsid("recommend", recommended, "--history", "i1,i2", "-k", 3, "--json").json["items"]) == 3
    assert capsid("evaluate", recommended, "--json").json["filter_history"] is True


def test_a_baseline_that_is_as_good_is_named(shop: Path, tmp_path: Path) -> None:
    """Without a memory and with a penalty that leaves nothing, the run is popularity."""
    weak = [*VECTORS, "--set", "memory=null", "--set", "generator.neighbours=1"]
    out = capsid("fit", "--data", shop, "--out", tmp_path / "weak", "--effort", "quick", *weak).out
    assert "memory is better than this run" in out or "memory is as good as this run" in out
    assert "better than all three" not in out


def test_nothing_is_compared_where_nothing_is_held_out_or_a_recipe_is_named(shop: Path, tmp_path: Path) -> None:
    for name, options in (("none", ("--holdout", "none")), ("named", ("--effort", "quick"))):
        command = ["fit", *([RECOMMENDED] if name == "named" else []), "--data", shop, "--out", tmp_path / name]
        assert "baselines" not in capsid(*command, *VECTORS, *options, "--json").json
        assert not (tmp_path / f"{name}.baselines").exists()


def test_a_quick_run_is_not_taken_for_the_best_of_three(shop: Path, tmp_path: Path) -> None:
    command = ("fit", "--data", shop, "--out", tmp_path / "run", *VECTORS)
    assert capsid(*command, "--effort", "quick").code == 0
    values, kept = kept_trial(capsid(*command))
    stored = json.loads((tmp_path / "run.trials.json").read_text())
    assert (stored["kept"], list(stored["tried"])) == (kept, list(values))


def test_all_data_with_the_recipe_of_an_earlier_run(shop: Path, recommended: Path, tmp_path: Path) -> None:
    command = ("fit", "--data", shop, "--out", tmp_path / "live", "--holdout", "none", "--steps-from", recommended)
    assert capsid(*command).code == 0
    before, after = (json.loads((run / "recipe.json").read_text()) for run in (recommended, tmp_path / "live"))
    assert before == after


def test_best_keeps_the_trial_that_validates_best(shop: Path, tmp_path: Path) -> None:
    command = ("fit", "sasrec", "--data", shop, "--out", tmp_path / "best", "--effort", "best", *SMALL[4:])
    answer = capsid(*command)
    assert answer.code == 0, answer.err
    values, kept = kept_trial(answer)
    assert list(values) == [f"sasrec, dropout {rate}" for rate in (0.2, 0.4, 0.6)]
    generator = json.loads((tmp_path / "best" / "recipe.json").read_text())["generator"]
    assert kept == f"sasrec, dropout {generator['dropout']}"
    assert values[kept] == max(values.values())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["best", "best.trials.json"], "the trials are gone"
    before = contents(tmp_path / "best")
    assert "already finished" in capsid(*command).err
    assert contents(tmp_path / "best") == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--effort", "fast"), "--effort must be quick, standard, best, got 'fast'"),
        (("--effort", "best", "--holdout", "none"), "several trials are chosen by validation"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    options: tuple[str, ...], message: str, shop: Path, tmp_path: Path
) -> None:
    answer = capsid("fit", "sasrec", "--data", shop, "--out", tmp_path / "run", *SMALL[4:], *options)
    assert answer.code == 2
    assert message in answer.err
    assert list(tmp_path.iterdir()) == []


def test_efforts_of_every_recipe() -> None:
    for recipe in RECIPES.values():
        assert with_effort(recipe, "standard") == {"standard": recipe}
        (quick,) = with_effort(recipe, "quick").values()
        for phase, short in zip(recipe.schedule, quick.schedule, strict=True):
            assert short.training.steps == max(1, round(phase.training.steps / 8))
            assert dataclasses.replace(short, training=phase.training) == phase
        best = with_effort(recipe, "best")
        drops = bool(recipe.schedule) and hasattr(recipe.generator, "dropout")
        assert len(best) == (3 if drops or hasattr(recipe.generator, "regularisation") else 1)
    rates = [r.generator.embedding_dropout for r in with_effort(get_recipe("sasrec"), "best").values()]
    np.testing.assert_allclose(rates, [0.2, 0.4, 0.6])
