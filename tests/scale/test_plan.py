"""Plans: more work never takes less, more workers never take longer, totals are sums, the bottleneck is the largest."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsid.errors import ConfigError
from capsid.scale.plan import (
    CORES_PER_GPU,
    GENERATORS,
    SAMPLE,
    SHARD_ROWS,
    START_SECONDS,
    TEXTS,
    Growth,
    Rates,
    Workload,
    make_plan,
)

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
SIZES = {"items": 10**9, "interactions": 10**10, "users": 10**9, "codes": 4096, "depth": 12, "dim": 2048, "epochs": 50}


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    numbers = {name: draw(st.integers(1, most)) for name, most in SIZES.items()}
    return Workload(
        **numbers,
        workers=draw(st.integers(1, 500)),
        device=draw(st.sampled_from(["cpu", "cuda"])),
        text=draw(st.sampled_from(TEXTS)),
        generator=draw(st.sampled_from(GENERATORS)),
    )


@given(work=workloads(), name=st.sampled_from(list(SIZES)), more=st.integers(1, 10**6))
def test_more_work_never_takes_less(work: Workload, name: str, more: int) -> None:
    larger = dataclasses.replace(work, **{name: getattr(work, name) + more})
    for less, greater in zip(make_plan(work).stages, make_plan(larger).stages):
        for what in ("seconds", "processor_seconds", "memory_bytes", "disk_bytes"):
            # Equal sums of floats may differ in the last bits.
            assert getattr(less, what) <= getattr(greater, what) * (1 + 1e-12), (less.name, what)


@given(work=workloads(), more=st.integers(1, 500))
def test_more_workers_never_take_longer_and_need_no_less_memory(work: Workload, more: int) -> None:
    one, many = make_plan(work), make_plan(dataclasses.replace(work, workers=work.workers + more))
    for few, others in zip(one.stages, many.stages):
        assert others.seconds <= few.seconds * (1 + 1e-12), few.name
        assert others.memory_bytes >= few.memory_bytes
        assert others.processor_seconds == few.processor_seconds
        assert others.disk_bytes == few.disk_bytes


@given(work=workloads())
def test_totals_and_bottleneck(work: Workload) -> None:
    plan = make_plan(work)
    told = plan.to_dict()
    assert told["seconds"] == sum(stage["seconds"] for stage in told["stages"])
    assert told["processor_seconds"] == sum(stage["processor_seconds"] for stage in told["stages"])
    assert told["disk_bytes"] == sum(stage["disk_bytes"] for stage in told["stages"])
    assert told["memory_bytes"] == max(stage["memory_bytes"] for stage in told["stages"])
    longest = max(told["stages"], key=lambda stage: stage["seconds"])
    assert told["bottleneck"] == longest["name"]
    assert all(stage.seconds * stage.workers >= stage.processor_seconds * (1 - 1e-9) for stage in plan.stages)
    assert json.loads(json.dumps(told)) == told


def known(**fields: Any) -> dict[str, Any]:
    work = {"items": 10 * SHARD_ROWS, "interactions": 10**6, "users": 1000, "codes": 10, "depth": 2}
    rates = Rates(prepare=1e-6, text=1e-3, encode=Growth(each=1e-4, codes=1e-5), fit=Growth(codes=1e-6))
    return {s.name: s for s in make_plan(Workload(**{**work, **fields}), rates).stages}


def test_known_answers() -> None:
    stages = known()
    assert stages["prepare"].seconds == pytest.approx(1 + START_SECONDS)
    assert stages["text vectors"].processor_seconds == pytest.approx(10 * SHARD_ROWS * 1e-3)
    # 1e-4 and 1e-5 for each of 10 codes of 2 depths.
    assert stages["encode"].processor_seconds == pytest.approx(10 * SHARD_ROWS * 3e-4)
    assert stages["tokenizer fit"].processor_seconds == pytest.approx(SAMPLE * 2e-5 + 10 * SHARD_ROWS * 3e-4)


def test_an_import_holds_ids_and_no_interactions() -> None:
    memory = known()["prepare"].memory_bytes
    assert known(interactions=10**9)["prepare"].memory_bytes == memory
    assert known(users=10**7)["prepare"].memory_bytes > memory


def test_rounds_of_shards() -> None:
    """Ten shards: four workers need three rounds, ten one, and an eleventh has nothing to do."""
    shard = SHARD_ROWS * 1e-3
    for workers, rounds, busy in ((1, 10, 1), (4, 3, 4), (10, 1, 10), (11, 1, 10)):
        stage = known(workers=workers)["text vectors"]
        assert stage.seconds == pytest.approx(rounds * shard + START_SECONDS)
        assert stage.workers == busy


def test_a_gpu_is_an_assumption_and_is_marked() -> None:
    cpu, gpu = known(), known(device="cuda")
    assert not any(stage.assumed for stage in cpu.values())
    assert {name for name, stage in gpu.items() if stage.assumed} == set(cpu) - {"prepare", "ids and trie"}
    assert gpu["encode"].processor_seconds == pytest.approx(cpu["encode"].processor_seconds / CORES_PER_GPU)


def test_own_vectors_need_no_text() -> None:
    assert "text vectors" not in known(text="own")


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"items": 0}, "items must be at least 1, got 0"),
        ({"workers": -2}, "workers must be at least 1, got -2"),
        ({"device": "tpu"}, "device must be one of cpu, cuda, got 'tpu'"),
        ({"generator": "gpt"}, "generator must be one of timeline, encoder-decoder, got 'gpt'"),
    ],
)
def test_impossible_workloads(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        known(**fields)


def test_the_rates_are_those_that_were_measured() -> None:
    stored = json.loads((RESULTS / "rates.json").read_text())["rates"]
    # An import costs more per row when its ids do not fit into caches, so the rate is that of the largest one.
    largest = json.loads((RESULTS / "interactions.json").read_text())["sizes"][-1]
    stored["prepare"] = largest["cpu_seconds"] / largest["rows"]
    # Ids are read from files and written to files, which a small job in memory does not show.
    made = json.loads((RESULTS / "end_to_end.json").read_text())
    stored["ids"]["each"] = made["rows"][0]["commands"]["ids"]["cpu_seconds"] / made["config"]["items"]
    for name, rate in dataclasses.asdict(Rates()).items():
        parts = rate if isinstance(rate, dict) else {"": rate}
        for part, value in parts.items():
            expected = stored[name][part] if part else stored[name]
            assert value == pytest.approx(expected, rel=0.01), f"{name} {part}"
