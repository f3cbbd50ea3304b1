from __future__ import annotations

import io
import sys
import types

import numpy as np
import pytest

from capsid.base.randomness import child_seed, numpy_rng
from capsid.errors import ConfigError, nearest
from capsid.progress import Console, automatic, duration, silent


def test_children_of_a_seed_differ_and_repeat() -> None:
    seeds = {child_seed(s, *p) for s in (0, 1) for p in [("a",), ("b",), ("a", 0), ("a", 1)]}
    assert len(seeds) == 8
    assert all(0 <= s < 2**63 for s in seeds)
    assert child_seed(3, "a", 1) == child_seed(3, "a", 1)
    np.testing.assert_array_equal(numpy_rng(5, "x").random(4), numpy_rng(5, "x").random(4))


def test_numpy_is_not_seeded_globally() -> None:
    before = np.random.get_state()[1].copy()
    numpy_rng(0, "x").random(3)
    np.testing.assert_array_equal(np.random.get_state()[1], before)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (42.2, "42 s"), (185, "3 min 05 s"), (3599.6, "1 h 00 min"), (7800, "2 h 10 min")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_console_writes_plain_lines_to_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(every_seconds=0.0)
    console.update("at 1")
    console.line("done")
    Console(every_seconds=60).update("too soon")
    silent.line("nothing")
    silent.update("nothing")
    captured = capsys.readouterr()
    assert captured.err == "at 1\ndone\n"
    assert captured.out == ""


class Notebook(io.StringIO):
    """Like the standard error of a Jupyter kernel, which says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_progress_is_shown_where_somebody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert automatic() is silent
    monkeypatch.setattr(sys, "stderr", None)
    assert automatic() is silent
    monkeypatch.setattr(sys, "stderr", Notebook())
    assert isinstance(automatic(), Console)


def test_a_notebook_gets_updating_text_without_escape_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = types.ModuleType("ipykernel.iostream")
    kernel.OutStream = Notebook  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ipykernel.iostream", kernel)
    shown = Notebook()
    monkeypatch.setattr(sys, "stderr", shown)
    console = automatic()
    assert isinstance(console, Console)
    for text in ("step 1 of 2, a long line", "step 2"):
        console._last = 0.0
        console.update(text)
    console.line("done")
    assert "\x1b" not in shown.getvalue()
    assert [part.rstrip() for part in shown.getvalue().split("\r") if part.strip()] == [
        "step 1 of 2, a long line",
        "step 2",
        "done",
    ]


def test_an_error_says_its_hint() -> None:
    error = ConfigError("no recipe 'tigre'", hint=nearest("tigre", ["tiger", "sasrec"]))
    assert str(error) == "no recipe 'tigre' (hint: did you mean 'tiger'? allowed: sasrec, tiger)"
    assert nearest("zzz", ["b", "a"]) == "allowed: a, b"
    assert error.exit_code == 2
