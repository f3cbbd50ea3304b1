"""The list of mistakes: each has its place in the code of today, and a planted one is judged by running tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_mistake_has_its_place(load) -> None:  # type: ignore[no-untyped-def]
    planted = load("_planted")
    names = [m.name for m in planted.MUTANTS]
    assert len(set(names)) == len(names) > 150
    assert len({m.file for m in planted.MUTANTS}) > 120
    for mutant in planted.MUTANTS:
        text = (ROOT / "src" / "capsid" / mutant.file).read_text(encoding="utf-8")
        assert text.count(mutant.old) == 1, f"{mutant.name}: {mutant.old!r} stands {text.count(mutant.old)} times"
        assert all((ROOT / "tests" / t.partition("::")[0]).exists() for t in mutant.tests), mutant.name


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import mutants
from _mutant import Mutant

old, tests = "return np.diff(self.offsets)", ("helpers/test_ragged.py",)
for file, text, new in (("rng.py", "nothing of the kind", ""), ("ragged.py", old, "return self.offsets"),
                        ("ragged.py", old, "return np.diff( self.offsets)")):
    print(mutants.judge(Mutant("name", file, text, new, tests), Path(sys.argv[2]))["verdict"])
"""


def test_a_mistake_is_planted_and_judged(tmp_path: Path) -> None:
    # In a process that has not imported capsid: its forks import the copy with the mistake.
    command = [sys.executable, "-c", SCRIPT, ROOT / "faults", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["stale", "noticed", "unnoticed"], done.stderr
