"""Which weights a phase keeps: those that are best by the measure that its settings name."""

from __future__ import annotations

import pytest
from small_recipes import small, world

from capsid.recommender import Recommender


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("measure", ["recall@10", "ndcg@10"])
def test_the_kept_weights_are_the_best_by_the_named_measure(measure: str, filtered: bool) -> None:
    training = "schedule.0.training"
    settings = (f"{training}.select={measure}", f"{training}.select_filtered={filtered}", f"{training}.patience=9")
    recommender = Recommender(small("sasrec", 30).with_settings((*settings, f"{training}.validate_every=10")))
    recommender.fit(world())
    (log,) = recommender.fitted.log
    found = recommender.evaluate("valid", ks=(10,), filter_history=filtered)
    assert log["best_metric"] == max(point["metric"] for point in log["curve"])
    assert found.metrics[measure] == pytest.approx(log["best_metric"], abs=1e-9)
