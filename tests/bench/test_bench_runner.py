"""The runner, with cells that only pretend: order, failures, budgets, kills of either side, twins."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest
from bench_world import Watch, fakes, jobs_of, plan_of, run, stored

import capsid.bench.runner as runner
from capsid.base.storage.artifacts import read_json, write_json
from capsid.base.storage.locks import held
from capsid.bench.cells import code_fingerprint
from capsid.bench.plans import Plan
from capsid.bench.prepare import fitting, time_left
from capsid.bench.process import DONE, FAILED, INTERRUPTED, KILLED
from capsid.bench.runner import NO_TIME, TAKEN
from capsid.bench.store import Place
from capsid.errors import ArtifactError


def started(place: Place) -> list[str]:
    return (place.works / "started.txt").read_text().split()


def states(summary: runner.Summary) -> dict[str, str]:
    return {o.cell.split("/")[0]: o.state for o in summary.outcomes}


def test_every_cell_once(place: Place, shop: Path, fake: Path) -> None:
    plan = fakes("ok-1", "ok-2", "ok-3")
    summary, watch = run(plan, place, shop, fake)
    assert states(summary) == dict.fromkeys(("ok-1", "ok-2", "ok-3"), DONE)
    assert not summary.failed
    assert [c.name for c in stored(place)] == [c.name for c in plan.cells]
    assert [p.state for p in watch.prospects] == ["to run"] * 3
    assert all("rough" in p.estimate.basis for p in watch.prospects if p.estimate)
    assert "ok-1/shop/0: works" in watch.lines
    assert {p.name for p in place.works.iterdir()} == {".gitignore", "started.txt"}

    again, watch = run(plan, place, shop, fake)
    assert set(states(again).values()) == {"finished"}
    assert started(place) == ["ok-1", "ok-2", "ok-3"]
    assert len(stored(place)) == 3


def test_two_workers_do_the_same(tmp_path: Path, shop: Path, fake: Path) -> None:
    plan = fakes("ok-1", "ok-2", "ok-3", "ok-4")
    one, two = Place(tmp_path / "one", "toy"), Place(tmp_path / "two", "toy")
    run(plan, one, shop, fake)
    run(plan, two, shop, fake, workers=2)
    first, second = ({c.name: c.to_dict() for c in stored(p)} for p in (one, two))
    assert first == second
    assert len(first) == 4


def test_one_goes_wrong_and_the_others_go_on(place: Place, shop: Path, fake: Path) -> None:
    wrong = [{"method": "popularity", "label": "no-setting", "settings": ["decoder.wdth=3"]}, {"method": "tigger"}]
    plan = plan_of(
        *wrong,
        *(
            {"method": "popularity", "label": label, "settings": [f"decoder.width={n + 5}"]}
            for n, label in enumerate(("error", "crash", "kill", "ok"))
        ),
    )
    summary, watch = run(plan, place, shop, fake)
    assert summary.failed
    not_there = "not available"
    expected = {
        "no-setting": not_there,
        "tigger": not_there,
        "error": FAILED,
        "crash": FAILED,
        "kill": KILLED,
        "ok": DONE,
    }
    assert states(summary) == expected
    by_label = {o.cell.split("/")[0]: o for o in summary.outcomes}
    assert "did you mean 'width'" in (by_label["no-setting"].hint or "")
    assert "allowed: " in (by_label["tigger"].hint or "")
    assert (by_label["error"].error, by_label["error"].hint) == ("it cannot be", "do something else")
    assert "RuntimeError: a bug of ours" in (by_label["crash"].error or "")
    assert "SIGKILL (out of memory?)" in (by_label["kill"].error or "")
    assert [c.label for c in stored(place)] == ["ok"]
    assert any(line.startswith("error/shop/0: failed, it cannot be (hint: do") for line in watch.lines)


def test_budget_asks_to_stop_and_says_so(place: Place, shop: Path, fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capsid.bench.prepare.rough_seconds", lambda job: 99.0 if "long" in job.cell.label else 0.2)
    monkeypatch.setattr("capsid.bench.prepare._scaled", lambda result, job: 99.0)
    plan = fakes("sleep-1", "ok-long", "ok-2")
    summary, watch = run(plan, place, shop, fake, budget=4.0)
    assert states(summary) == {"sleep-1": INTERRUPTED, "ok-long": NO_TIME, "ok-2": NO_TIME}
    assert not summary.failed
    assert watch.starts == [True, False, True]
    assert summary.seconds < 40, "the sleeper would have slept for longer"
    assert "sleep-1/shop/0: the budget is used up, asked to stop" in watch.lines
    assert "sleep-1/shop/0: asleep" in watch.shown[-1][0]
    assert "cells, ETA" in watch.shown[-1][0]
    assert started(place) == ["sleep-1"]
    assert not len(stored(place))
    # What fits is started though something before it does not.
    summary, _ = run(fakes("ok-1-long", "ok-2"), place, shop, fake, budget=60.0)
    assert states(summary) == {"ok-1-long": NO_TIME, "ok-2": DONE}


def test_who_does_not_stop_is_killed_not_silently(
    place: Place, shop: Path, fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capsid.bench.prepare.rough_seconds", lambda job: 0.1)
    summary, watch = run(fakes("stubborn"), place, shop, fake, budget=4.0, grace=0.3)
    assert states(summary) == {"stubborn": INTERRUPTED}
    assert any("did not stop within 0 s, its process is killed" in line for line in watch.lines)


def test_estimates_come_from_finished_cells(place: Place, shop: Path, fake: Path) -> None:
    run(fakes("ok-1"), place, shop, fake)
    (result,) = stored(place)
    _, watch = run(fakes("ok-1", "ok-2"), place, shop, fake)
    ahead = watch.prospects[1].estimate
    assert ahead is not None
    assert ahead.basis == "1 finished cell of popularity"
    assert ahead.seconds == pytest.approx(result.seconds["wall"])


def test_what_fits() -> None:
    assert fitting([50, 60, 10], 1, 70) == [True, False, True]
    assert fitting([50, 60, 10], 2, 70) == [True, True, True]
    assert fitting([50, 60], 1, None) == [True, True]
    assert time_left([30, 20, 10], 2) == 30


@pytest.mark.parametrize("moment", ["append", "forget_work"])
def test_killed_around_the_line(
    moment: str, place: Place, shop: Path, fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner dies just before or just after a line is written: not run again, one line."""

    class Dead(BaseException):
        pass

    def die(*_: object) -> None:
        raise Dead

    plan = fakes("ok-1", "ok-2")
    with monkeypatch.context() as patch:
        patch.setattr(runner, moment, die)
        with pytest.raises(Dead):
            run(plan, place, shop, fake)
    summary, watch = run(plan, place, shop, fake)
    assert states(summary)["ok-2"] == DONE
    assert [c.label for c in stored(place)] == ["ok-1", "ok-2"]
    assert started(place) == ["ok-1", "ok-2"]
    assert ("ok-1/shop/0: done, was finished, only its line was missing" in watch.lines) == (moment == "append")
    assert not (place.works / jobs_of(plan, shop)[0].key).exists()


def test_the_same_work_is_done_once(tmp_path: Path, shop: Path, fake: Path) -> None:
    same = [{"method": "popularity", "label": label} for label in ("ok-1", "ok-2")]
    place = Place(tmp_path, "toy")
    summary, _ = run(plan_of(*same), place, shop, fake, workers=2)
    assert states(summary) == {"ok-1": DONE, "ok-2": TAKEN}
    assert started(place) == ["ok-1"]
    other = Place(tmp_path, "other")
    summary, _ = run(plan_of({"method": "popularity", "label": "full"}, name="other"), other, shop, fake)
    assert states(summary) == {"full": TAKEN}
    (taken,) = stored(other)
    assert (taken.plan, taken.label, taken.taken_from) == ("other", "full", "toy:ok-2/shop/0")
    assert len(stored(other).values(taken, "test", "recall@10")) == 60


def test_a_plan_that_was_changed_and_changed_back(place: Place, shop: Path, fake: Path) -> None:
    """Tables show the latest line of a name, so an earlier result is written again and not only called finished."""

    def plan(width: int) -> Plan:
        return plan_of({"method": "popularity", "label": "ok", "settings": [f"decoder.width={width}"]})

    for width in (5, 6):
        assert states(run(plan(width), place, shop, fake)[0]) == {"ok": DONE}
    assert states(run(plan(5), place, shop, fake)[0]) == {"ok": TAKEN}
    assert started(place) == ["ok", "ok"], "nothing is done twice"
    (shown,) = stored(place)
    assert shown.recipe["decoder"]["width"] == 5
    assert len(stored(place).values(shown, "test", "recall@10")) == 60
    assert states(run(plan(5), place, shop, fake)[0]) == {"ok": "finished"}


def test_other_code_does_not_count_where_asked(place: Place, shop: Path, fake: Path) -> None:
    template = fake.with_name("result.json")
    before = read_json(template)
    plan = fakes("ok-1")
    try:
        write_json(template, {**before, "code": "other", "codes": ["other"]})
        _, watch = run(plan, place, shop, fake)
        assert any("another version of the code" in line for line in watch.lines)
        assert states(run(plan, place, shop, fake)[0]) == {"ok-1": "finished"}
        write_json(template, {**before, "code": code_fingerprint(), "codes": [code_fingerprint()]})
        assert states(run(plan, place, shop, fake, fresh_code=True)[0]) == {"ok-1": DONE}
        assert states(run(plan, place, shop, fake, fresh_code=True)[0]) == {"ok-1": "finished"}
    finally:
        write_json(template, before)
    assert [c.code for c in stored(place)] == [code_fingerprint()]


def test_one_runner_at_a_time(place: Place, shop: Path, fake: Path) -> None:
    with held(place.works / "runner.lock"), pytest.raises(ArtifactError, match="another run of the plan 'toy'"):
        run(fakes("ok"), place, shop, fake)


def test_a_polite_kill_stops_the_cells(place: Place, shop: Path, fake: Path) -> None:
    def kill() -> None:
        until = time.monotonic() + 60
        while not (place.works / "started.txt").exists() and time.monotonic() < until:
            time.sleep(0.01)
        signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    finger = threading.Thread(target=kill)
    finger.start()
    with pytest.raises(KeyboardInterrupt):
        run(fakes("sleep"), place, shop, fake)
    finger.join()
    assert signal.getsignal(signal.SIGTERM) is before


def test_watch_is_a_watch() -> None:
    watch: runner.Watch = Watch()
    assert watch.line("x") is None
