"""The list of mistakes: each has its place in the code of today, and a planted one is judged by running tests."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_mistake_has_its_place(load) -> None:  # type: ignore[no-untyped-def]
    planted = load("_planted")
    names = [m.name for m in planted.MUTANTS]
    assert len(set(names)) == len(names)
    for mutant in planted.MUTANTS:
        text = (ROOT / "src" / "capsid" / mutant.file).read_text(encoding="utf-8")
        assert text.count(mutant.old) == 1, f"{mutant.name}: {mutant.old!r} stands {text.count(mutant.old)} times"
        assert all((ROOT / "tests" / t.partition("::")[0]).is_file() for t in mutant.tests), mutant.name


def test_a_mistake_is_planted_and_judged(load, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    mutants, planted = load("mutants"), load("_planted")
    stale = planted.Mutant("gone", "rng.py", "nothing of the kind", "", ("helpers/test_ragged.py",))
    assert mutants.judge(stale, tmp_path)["verdict"] == "stale"
    wrong = planted.Mutant(
        "no lengths", "ragged.py", "return np.diff(self.offsets)", "return self.offsets", stale.tests
    )
    assert mutants.judge(wrong, tmp_path)["verdict"] == "noticed"
    harmless = planted.Mutant(
        "a synonym", "ragged.py", "return np.diff(self.offsets)", "return np.diff( self.offsets)", stale.tests
    )
    assert mutants.judge(harmless, tmp_path)["verdict"] == "unnoticed"
