"""The campaign of odd cases in short: some of each group have the answer they must get, and a bad one is counted."""

from __future__ import annotations

from pathlib import Path


def test_some_cases_of_every_group_are_good(load, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    cases = load("cases")
    result = cases.main(["--quick", "--out", str(tmp_path / "cases.json")])
    assert result["bad"] == []
    assert set(result["groups"]) == {c.group for c in cases.every_case()} - {"streams"}
    assert all(g["cases"] == g["good"] >= 12 for g in result["groups"].values())


def test_every_setting_of_every_recipe_is_tried(load) -> None:  # type: ignore[no-untyped-def]
    every = list(load("cases").every_case())
    assert len(every) > 5_000
    assert len({(c.group, c.name) for c in every}) > 5_000
    for path in ("capsid tokenizer.codebooks", "tiger generator.width", "sasrec schedule.0.training.beta2"):
        assert any(path in c.name for c in every), path


def test_what_counts_as_good(load) -> None:  # type: ignore[no-untyped-def]
    shared = load("_cases")
    case = shared.Case("group", "name", lambda world: shared.Answer(0))
    fine = shared.Case("group", "name", case.act, expected="success")
    good = shared.Answer(2, "", "error: -k must be at least 1, got 0\nhint: such as -k 10\n")
    assert shared.judge(case, good) == ""
    assert shared.judge(case, shared.Answer(0)) == "no error"
    assert shared.judge(fine, shared.Answer(0)) == ""
    assert "an error" in shared.judge(fine, good)
    for code, err in ((3, good.err), (1, "error: x\n"), (1, good.err * 2), (1, good.err.replace("k", "\x1b")), (1, "")):
        assert shared.judge(case, shared.Answer(code, "", err)) != "", (code, err)
    assert "traceback" in shared.judge(case, shared.python(lambda: 1 / 0))
