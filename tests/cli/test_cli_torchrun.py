"""`torchrun -m capsid fit`: two processes, one of them killed, write the run of `capsid fit`. One launch for all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_world import capsid, settings
from safetensors.torch import load_file
from teams import hash_of

LANES = "schedule.0.training.lanes=4"


def member(launcher: int, rank: int) -> int | None:
    """The process that the launcher started with this number."""
    for entry in Path("/proc").iterdir():
        try:
            told = (entry / "environ").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if parent == launcher and f"RANK={rank}".encode() in told:
            return int(entry.name)
    return None


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the processes in /proc")
def test_a_killed_process_is_started_again_and_nothing_changes(shop: Path, tmp_path: Path) -> None:
    small = settings("schedule.0.training.steps=60", "schedule.0.training.validate_every=60")
    ids, alone, team = (tmp_path / n for n in ("ids", "alone", "team"))
    assert capsid("tokenizer", "fit", "rq-kmeans", "--data", shop, "--out", ids, *small).code == 0
    assert capsid("fit", "rq-kmeans", "--data", shop, "--out", alone, *small, "--set", LANES).code == 0
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    verb = ["fit", "rq-kmeans", "--data", shop, "--out", team, *small, "--tokenizer", ids, "--checkpoint-every", "0.1"]
    process = subprocess.Popen(
        # On a busy machine the other process may die of the kill only after the restart, which is then a second one.
        [*launch, "--max-restarts", "3", "-m", "capsid", *map(str, verb)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        until = time.monotonic() + 300
        while process.poll() is None and not list(tmp_path.glob(".team.work/*/phase-0.checkpoint")):
            assert time.monotonic() < until
            time.sleep(0.02)
        number = member(process.pid, 0)
        assert number is not None
        os.kill(number, signal.SIGKILL)
        said, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert said.count("resuming from step") >= 1, said
    assert said.count("run: ") == 1, "only the first process tells"
    weights = [hash_of(load_file(run / "generator.safetensors")) for run in (alone, team)]
    assert weights[0] == weights[1]
    assert (alone / "recipe.json").read_text() == (team / "recipe.json").read_text(), "torchrun trains in 4 lanes"


def test_a_tokenizer_must_be_of_the_same_fit(shop: Path, fitted: Path, tmp_path: Path) -> None:
    ids, out = tmp_path / "ids", tmp_path / "run"
    assert capsid("tokenizer", "fit", "rq-kmeans", "--data", shop, "--out", ids, *settings()).code == 0
    fit = ("fit", "rq-kmeans", "--data", shop, "--out", out, "--tokenizer", ids)
    assert "was fitted with seed 0, this fit has seed 1" in capsid(*fit, "--seed", 1, *settings()).err
    other = capsid(*fit, *settings("tokenizer.codebooks=4,8"))
    assert "does not match the recipe: tokenizer.codebooks [8, 8], not [4, 8]" in other.err
    assert "--tokenizer needs --holdout last, got none" in capsid(*fit, "--holdout", "none", *settings()).err
    assert "was fitted on other data" in capsid(*fit[:3], "movies", *fit[4:], *settings()).err
    assert "holds a run, not a tokenizer" in capsid(*fit[:-1], fitted, *settings()).err
    assert not out.exists()
    assert capsid(*fit, *settings()).code == 0
    weights = [hash_of(load_file(run / "generator.safetensors")) for run in (fitted, out)]
    assert weights[0] == weights[1], "the same run as with ids of its own"
