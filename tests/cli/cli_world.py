"""The command line called in-process, and settings so small that a fit takes a second."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsid.cli.main import run

TINY = (
    "tokenizer.codebooks=8,8",
    "generator.layers=1",
    "generator.heads=2",
    "generator.width=16",
    "generator.feedforward=32",
    "generator.history=6",
    "decoder.width=20",
    "schedule.0.training.steps=40",
    "schedule.0.training.batch_size=32",
    "schedule.0.training.validate_every=20",
    "schedule.0.training.learning_rate=0.01",
    "schedule.0.training.validation_users=50",
)


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


def capsid(*arguments: object) -> Answer:
    """What the command `capsid` does with these arguments."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([str(a) for a in arguments])
    return Answer(code, out.getvalue(), err.getvalue())


def settings(*more: str) -> list[str]:
    """The tiny settings and some more, as options."""
    return [part for setting in (*TINY, *more) for part in ("--set", setting)]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
