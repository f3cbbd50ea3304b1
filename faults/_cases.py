"""Shared by the groups of `cases.py`: a case, its small runs and files, and how an answer is judged."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fuzz_artifacts import make_runs

from capsid.base.printable import printable
from capsid.cli.main import run
from capsid.data.planted import planted_dataset
from capsid.data.prepared import write_prepared
from capsid.errors import CapsidError
from capsid.recommender import Recommender

Expected = Literal["error", "success", "either"]
LONGEST = 2_000
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True)
class Answer:
    """What a command or a call gave: exit code, standard output and standard error, or the traceback of a bug."""

    code: int
    out: str = ""
    err: str = ""
    bug: str = ""


@dataclass(eq=False)
class World:
    """Small fitted runs and data, made once; `fresh` gives every case an empty folder."""

    folder: Path
    run: Path = field(init=False)
    capsules: Path = field(init=False)
    popular: Path = field(init=False)
    shop: Path = field(init=False)
    items: Path = field(init=False)
    loaded: Recommender = field(init=False)
    count: int = 0

    def __post_init__(self) -> None:
        self.run, self.capsules, self.popular = make_runs(
            self.folder / "runs", ["rq-kmeans", "capsid-bpe", "popularity"]
        )
        data = planted_dataset(branching=(3, 2), items_per_leaf=3, users=24, length=6)
        self.shop = write_prepared(data, self.folder / "shop")
        self.items = self.folder / "items.jsonl"
        self.items.write_text('{"item_id": "new", "title": "amber 0 birch 0 item 9"}\n', encoding="utf-8")
        self.loaded = Recommender.from_pretrained(self.run)
        for fitted in (self.run, self.popular):
            capsid("evaluate", fitted)

    def fresh(self) -> Path:
        """An empty folder; the one before is gone."""
        shutil.rmtree(self.folder / f"case-{self.count}", ignore_errors=True)
        self.count += 1
        place = self.folder / f"case-{self.count}"
        place.mkdir()
        return place


@dataclass(frozen=True)
class Case:
    """One thing to try. `says` must stand in the error or the output; `check` may look at the answer itself."""

    group: str
    name: str
    act: Callable[[World], Answer]
    expected: Expected = "error"
    says: str = ""
    check: Callable[[Answer], bool] | None = None


def capsid(*arguments: object) -> Answer:
    """The command line, called in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = run([str(a) for a in arguments])
        except BaseException:
            return Answer(-1, out.getvalue(), err.getvalue(), traceback.format_exc(limit=-4))
    return Answer(code, out.getvalue(), err.getvalue())


def python(call: Callable[[], Any]) -> Answer:
    """A call of the library, as an answer of the command line."""
    err = io.StringIO()
    try:
        with contextlib.redirect_stderr(err):
            return Answer(0, repr(call())[:500], err.getvalue())
    except CapsidError as error:
        hint = f"hint: {error.hint}\n" if error.hint else ""
        return Answer(error.exit_code, "", printable(f"error: {error.message}\n{hint}"))
    except BaseException:
        return Answer(-1, "", "", traceback.format_exc(limit=-4))


def checked(answer: Answer) -> Answer:
    """`data check` lists what it found on standard output: its first finding as the error."""
    lines = answer.out.splitlines()
    first = next((line for line in lines if line.startswith("error: ")), "")
    if answer.code != 1 or not first:
        return answer
    after = lines[lines.index(first) + 1 :]
    hint = after[0].strip() if after and after[0].startswith("  hint: ") else ""
    return Answer(1, answer.out, f"{first}\n{hint}\n")


def judge(case: Case, answer: Answer) -> str:
    """Empty if the answer is good, else what is wrong with it."""
    if answer.bug or "Traceback (most recent call last)" in answer.err:
        return f"traceback: {answer.bug or answer.err}"
    said = answer.err + answer.out
    if CONTROL.search(answer.err):
        return f"control characters: {answer.err[:200]!r}"
    if case.says and case.says not in said:
        return f"does not say {case.says!r}: {said[:300]!r}"
    if case.check is not None and not case.check(answer):
        return f"a wrong answer: {answer.code}, {said[:300]!r}"
    if answer.code == 0:
        return "no error" if case.expected == "error" else ""
    return f"an error: {answer.err[:300]!r}" if case.expected == "success" else _judge_error(answer)


def _judge_error(answer: Answer) -> str:
    """An error is one sentence and a hint, with exit code 1 or 2."""
    if answer.code not in (1, 2):
        return f"exit code {answer.code}"
    errors = re.findall(r"^error: (.*)$", answer.err, re.MULTILINE)
    hints = re.findall(r"^hint: (.+)$", answer.err, re.MULTILINE)
    if len(errors) != 1 or len(hints) != 1 or not errors[0]:
        return f"not one sentence with a hint: {answer.err[:300]!r}"
    return f"{len(answer.err):,} characters long" if len(answer.err) > LONGEST else ""
