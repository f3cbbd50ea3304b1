"""Ctrl-C: one line and exit code 130 at any moment, also while libraries load. No traceback, no crash."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# Python runs a module of this name before `-m capsid`. A shell may have started the tests deaf to Ctrl-C.
HEARS = "import os, signal, sys\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
# The place of the fourth import that torch makes from C++ here: an exception in it ends the process with SIGSEGV.
INSIDE_TORCH = """
calls = []
def watch(frame, event, arg):
    if event == "c_call" and arg.__name__ == "_autograd_init":
        calls.append(arg.__name__)
    elif event == "call" and calls and frame.f_code.co_name == "_lock_unlock_module":
        calls.append(frame.f_code.co_name)
        if len(calls) == 5:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)
sys.setprofile(watch)
"""
STOPPED = re.compile(r"\nstopped(; run the same command again to resume)?\n")


def at_import_of(module: str, action: str) -> str:
    return f"""
class Finder:
    def find_spec(name, *_):
        if name == {module!r}:
            {action}
sys.meta_path.insert(0, Finder)
"""


def start(module: str, *arguments: object, folder: Path, first: str = "") -> subprocess.Popen[str]:
    """`python -m module` with some code that runs first."""
    (folder / "sitecustomize.py").write_text(HEARS + first)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


PRESSES = {
    name: at_import_of(name, "signal.raise_signal(signal.SIGINT)")
    for name in ("capsid.cli.interrupts", "typer", "capsid.cli.recommend", "numpy", "torch.nn")
}


@pytest.mark.parametrize("first", [*PRESSES.values(), INSIDE_TORCH], ids=[*PRESSES, "inside torch"])
def test_control_c_during_an_import(first: str, fitted: Path, tmp_path: Path) -> None:
    process = start("capsid", "recommend", fitted, "--history", "i1", folder=tmp_path, first=first)
    out, err = process.communicate()
    assert (process.returncode, out) == (130, "")
    assert STOPPED.fullmatch(err)


@pytest.mark.parametrize("after", [0.05, 0.7, 1.5])
def test_control_c_at_any_moment(after: float, fitted: Path, tmp_path: Path) -> None:
    # Until `capsid` listens, Ctrl-C is Python's: it ends with a traceback.
    first = at_import_of("capsid.cli.main", "os.write(2, b'listening\\n')")
    process = start("capsid", "recommend", fitted, "--history", "i1", folder=tmp_path, first=first)
    assert process.stderr is not None
    assert process.stderr.readline() == "listening\n"
    time.sleep(after)
    # Twice, as one does who sees no answer.
    for _ in range(2):
        process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    if process.returncode == 0:
        assert "score" in out
        assert err == ""
    else:
        assert process.returncode == 130
        assert STOPPED.fullmatch(err)


def test_control_c_inside_an_exec_is_an_exit_code_and_no_signal(tmp_path: Path) -> None:
    (tmp_path / "pressed.py").write_text(
        "import capsid.cli.main\n"
        "from capsid.__main__ import main\n"
        "capsid.cli.main.run = lambda *_: exec('import signal; signal.raise_signal(signal.SIGINT)')\n"
        "main()\n"
    )
    process = start("pressed", folder=tmp_path)
    assert (process.communicate(), process.returncode) == (("", "\nstopped\n"), 130)


def interrupted(code: str, folder: Path) -> str:
    """What code prints that is to be interrupted."""
    head = "import signal, sys\nfrom capsid.cli.interrupts import Interrupts\nheard = Interrupts()\n"
    (folder / "code.py").write_text(head + code)
    process = start("code", folder=folder)
    out, err = process.communicate()
    assert err == ""
    return out


def test_an_import_is_finished_first(tmp_path: Path) -> None:
    (tmp_path / "loading.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\nwhole = True\n")
    code = """
heard.listen()
try:
    import loading; print("lost")
except KeyboardInterrupt:
    print(sys.modules["loading"].whole, heard.came)
"""
    assert interrupted(code, tmp_path) == "True True\n"


def test_the_import_that_we_run_in_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "outer.py").write_text(
        "import signal, __main__\n__main__.heard.listen()\n"
        "try:\n    signal.raise_signal(signal.SIGINT)\n    print('held')\n"
        "except KeyboardInterrupt:\n    print('stopped')\n"
    )
    assert interrupted("import outer", tmp_path) == "stopped\n"


@pytest.mark.parametrize("place", ["Dropped()", "(lambda dropped: None)(Dropped())", "[Dropped(), nothing][1]"])
def test_control_c_inside_a_destructor_is_not_lost(place: str, tmp_path: Path) -> None:
    code = f"""
class Dropped:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

nothing = None
heard.listen()
try:
    {place}; print("lost")
except KeyboardInterrupt:
    print("stopped")
"""
    assert interrupted(code, tmp_path) == "stopped\n"


def test_a_background_job_stays_deaf_and_one_that_ends_becomes_it(tmp_path: Path) -> None:
    code = """
def press(name):
    try:
        signal.raise_signal(signal.SIGINT)
        print(name, "deaf")
    except KeyboardInterrupt:
        print(name, "hears")

signal.signal(signal.SIGINT, signal.SIG_IGN)
heard.listen()
press("background")
signal.signal(signal.SIGINT, signal.default_int_handler)
heard.listen()
press("foreground")
heard.ignore()
press("ending")
"""
    assert interrupted(code, tmp_path) == "background deaf\nforeground hears\nending deaf\n"
