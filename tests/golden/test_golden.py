"""Losses, ids and rankings of whole recipes on a small world, recorded once: a move of code must not change a bit.

Bits depend on the processor and on torch, so they are compared only where both match the recording. Elsewhere ids must
be equal and losses close. After an intended change, record again: `python tests/golden/test_golden.py [CASE ...]`.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from small_recipes import small, world

from capsid.base.run_options import RunOptions
from capsid.memory.memory import REACH
from capsid.progress import Progress, Silent, silent
from capsid.recommender import Recommender

RECORDED = Path(__file__).with_name("golden.json")
# Name of an entry -> recipe and settings beyond those of `small`.
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "tiger": ("tiger", ("generator.dropout=0.1",)),
    "tiger with the transformer": ("tiger", ("generator=transformer", "generator.width=32", "generator.layers=1")),
    "capsid": ("capsid", ("generator.dropout=0.1",)),
    "capsid-bpe": ("capsid-bpe", ("generator.dropout=0.1",)),
    "capsid-bpe with adapters": ("capsid-bpe", ("schedule.0.adapt=routing-adapters",)),
    "sasrec": ("sasrec", ("generator.dropout=0.1",)),
    "bert4rec": ("bert4rec", ("generator.dropout=0.1",)),
    "capsid-strong": ("capsid-strong", ("generator.dropout=0.1",)),
    "capsid-two": ("capsid-two", ("generator.dropout=0.1",)),
    "cobra": ("cobra", ("generator.dropout=0.1",)),
    "actionpiece": ("actionpiece", ("generator.dropout=0.1",)),
    "etegrec": ("etegrec", ("generator.dropout=0.1",)),
}
# These are also killed in training and resumed, which must not change a bit either.
RESUMED = ("capsid-strong", "capsid-two", "etegrec")
STEPS, USERS, TOP = 40, 6, 8


def machine() -> str:
    """What bits depend on."""
    return f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"


class Killed(Exception):
    pass


class Kills(Silent):
    """Ends the process, so to say, when a phase of the generator is at a step."""

    def update(self, text: str) -> None:
        if f"step {STEPS // 2 - 3:,}/{STEPS:,}" in text:
            raise Killed


def measure(case: str, work: Path | None = None, progress: Progress = silent) -> dict[str, Any]:
    """Fit the recipe and take down what it did."""
    name, settings = CASES[case]
    recipe, often = small(name, STEPS).with_settings(settings), RunOptions(checkpoint_every=0.0)
    recommender = Recommender(recipe, seed=0).fit(world(), work=work, run=often, progress=progress)
    fitted, dataset = recommender.fitted, world()
    histories = [dataset.items.ids(row[:-2]) for row in dataset.sequences][:USERS]
    lists = recommender.recommend_many(histories, TOP)
    tokens = [tuple(int(t) for t in row) for row in fitted.tokenizer.ids.prefix_free]
    weights, state = hashlib.sha256(), fitted.generator.state()
    if fitted.memory is not None:
        state["memory.weight"] = torch.tensor(fitted.memory.weights) / REACH
        state["memory.temperature"] = torch.tensor(fitted.memory.temperature)
    for key, tensor in sorted(state.items()):
        weights.update(key.encode() + tensor.numpy().tobytes())
    return {
        "ids": hashlib.sha256(repr(tokens).encode()).hexdigest(),
        "losses": [float(p["loss"]).hex() for phase in fitted.log for p in phase["curve"]],
        "validation": [float(p["metric"]).hex() for phase in fitted.log for p in phase["curve"]],
        "weights": weights.hexdigest(),
        "items": [list(r.items) for r in lists],
        "scores": [[float(s).hex() for s in r.scores] for r in lists],
    }


def numbers(values: list[str]) -> list[float]:
    return [float.fromhex(v) for v in values]


def compare(case: str, found: dict[str, Any]) -> None:
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    wanted = recorded["cases"][case]
    if recorded["machine"] == machine():
        assert found == wanted
    else:
        assert found["ids"] == wanted["ids"]
        assert numbers(found["losses"]) == pytest.approx(numbers(wanted["losses"]), rel=1e-2)


@pytest.mark.parametrize("case", CASES)
def test_nothing_changed(case: str) -> None:
    compare(case, measure(case))


@pytest.mark.parametrize("case", RESUMED)
def test_a_killed_fit_resumes_to_the_same(case: str, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        measure(case, tmp_path, Kills())
    assert list(tmp_path.rglob("*.checkpoint"))
    compare(case, measure(case, tmp_path))


if __name__ == "__main__":
    torch.set_num_threads(1)
    cases = {case: measure(case) for case in sys.argv[1:] or CASES}
    if sys.argv[1:]:
        cases = {**json.loads(RECORDED.read_text(encoding="utf-8"))["cases"], **cases}
    RECORDED.write_text(json.dumps({"machine": machine(), "cases": cases}, indent=1) + "\n", encoding="utf-8")
