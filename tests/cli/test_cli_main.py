"""The front door: help, versions, and what a user sees when something goes wrong."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from typing import Any

import pytest
import typer
from cli_world import capsid

import capsid.data.sources as capsid_sources
from capsid import __version__
from capsid.cli.main import VERBS, Verbs, app
from capsid.cli.usage import usage_error
from capsid.evaluate.metrics import LIST_METRICS, METRICS

GROUPS = {
    "data": ("list", "describe", "check", "audit", "import"),
    "recipes": ("list", "show", "diff"),
    "vectors": ("fit", "embed", "encode", "ids"),
    "tokenizer": ("fit", "encode", "add", "report", "inspect", "facets", "merges", "export"),
    "bench": ("run", "status", "table", "figure", "report", "check", "claims"),
}
COMMANDS = [(verb, *sub) for verb in VERBS for sub in ([(s,) for s in GROUPS[verb]] if verb in GROUPS else [()])]


def test_the_verbs_of_the_design_are_there() -> None:
    designed = {"demo", "data", "recipes", "fit", "evaluate", "predict", "recommend", "tokenizer", "serve", "doctor"}
    assert designed | {
        "compare",
        "vectors",
        "bench",
        "refit",
        "export",
        "explore",
        "completion",
        "plan",
        "tune",
    } == set(VERBS)
    root = typer.main.get_command(app)
    assert isinstance(root, Verbs)
    for verb, subs in GROUPS.items():
        assert set(root.get_command(None, verb).commands) == set(subs)


def test_help_names_every_verb() -> None:
    answer = capsid("--help")
    assert answer.code == 0
    for verb, (_, about) in VERBS.items():
        assert f"\n  {verb} " in answer.out
        assert about.split()[0] in answer.out


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_examples(command: tuple[str, ...]) -> None:
    answer = capsid(*command, "--help")
    assert answer.code == 0
    assert "Examples:" in answer.out
    assert f"capsid {' '.join(command)}" in answer.out.split("Examples:")[1]


def test_help_of_evaluate_lists_every_metric() -> None:
    shown = capsid("evaluate", "--help").out
    for metric in (*METRICS.values(), *LIST_METRICS.values()):
        assert any(line.split() == [f"{metric.name}@K", *metric.about.split()] for line in shown.splitlines())


def test_help_is_quick() -> None:
    """0.3 s of processor time, best of three: waiting for a busy machine is not our time."""
    spent = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "capsid", "--help"], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(spent) < 0.3


def test_version() -> None:
    assert capsid("--version").out.splitlines()[0] == f"capsid {__version__}"


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["recomend"], "error: there is no command 'recomend'", "hint: did you mean 'recommend'"),
        (["data", "lst"], "error: there is no command 'lst'", "hint: did you mean 'list'"),
        (["fit"], "error: --data must be given", "hint: A name (`capsid data list`) or a folder."),
        (["fit", "sasrec", "--data", "x"], "error: --out must be given", "See `capsid fit --help`."),
        (["data", "list", "--jsn"], "error: there is no option '--jsn'", "hint: did you mean '--json'"),
        (["--nope"], "error: there is no option '--nope'", "hint: allowed: --quiet, --version"),
        (["data", "list", "a", "b"], "error: too many arguments: 'a b'", "hint: see `capsid data list --help`"),
        (["data", "list", "--json=3"], "error: --json takes no value", "hint: write --json alone"),
        (["recommend", "r", "-k"], "error: -k needs a value", "hint: write -k VALUE"),
        (
            ["recommend", "r", "-k", "abc"],
            "error: -k must be a whole number, got 'abc'",
            "hint: How many items. See `capsid recommend --help`.",
        ),
        (["recommend", "r", "-k", "1.5"], "error: -k must be a whole number, got '1.5'", "hint: How many items."),
        (["fit", "sasrec", "--data", "x", "--out", "y", "--seed=one"], "--seed must be a whole number, got 'one'", ""),
        (["serve", "r", "--deadline", "soon"], "error: --deadline must be a number, got 'soon'", "hint: Seconds"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], message: str, hint: str) -> None:
    answer = capsid(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
    assert hint in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize("kind", ["integer", "float"])
def test_older_parsers_put_the_value_in_their_message(kind: str) -> None:
    error = typer.BadParameter(f"'it's' is not a valid {kind}.", param_hint="'-k' / '--count'")
    rule = "a whole number" if kind == "integer" else "a number"
    assert usage_error(error).message == f'-k must be {rule}, got "it\'s"'


def test_other_errors_of_the_parser_keep_their_words() -> None:
    error = usage_error(typer.BadParameter("file 'x' is not readable.", param_hint="'--data'"))
    assert (error.message, error.hint) == (
        "Invalid value for '--data': file 'x' is not readable.",
        "see `capsid --help`",
    )


def test_every_number_of_every_verb_is_refused_in_our_words() -> None:
    tried = 0
    for path in COMMANDS:
        for option in command_of(path).params:
            if option.param_type_name == "option" and not option.is_flag and isinstance(option.default, int | float):
                tried += 1
                answer = capsid(*path, option.opts[0], "seven")
                assert answer.code == 2, path
                assert f"error: {option.opts[0]} must be " in answer.err, answer.err
                assert "got 'seven'" in answer.err, answer.err
    assert tried > 20


def command_of(path: tuple[str, ...]) -> Any:
    command: Any = typer.main.get_command(app)
    for name in path:
        command = command.get_command(None, name)
    return command


def test_without_a_verb_help_is_shown() -> None:
    for arguments in ([], ["tokenizer"]):
        answer = capsid(*arguments)
        assert answer.code == 2
        assert "Usage: capsid" in answer.err


def test_control_c_is_one_line_and_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(capsid_sources, "load_dataset", stop)
    answer = capsid("data", "describe", "planted")
    assert (answer.code, answer.err.strip()) == (130, "stopped; run the same command again to resume")


def test_a_bug_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(capsid_sources, "load_dataset", fail)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        capsid("data", "describe", "planted")


def test_a_reader_who_leaves_early_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "capsid", "data", "list"]
    result = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert result.stderr == ""
    assert result.returncode == 1


def test_recipes_list_show_diff() -> None:
    names = [recipe["name"] for recipe in capsid("recipes", "list", "--json").json]
    assert {"rq-kmeans", "sasrec", "popularity"} <= set(names)
    assert all(name in capsid("recipes", "list").out for name in names)
    assert capsid("recipes", "show", "rq-kmeans", "--json").json["tokenizer"]["codebooks"] == [256, 256, 256]
    show = capsid("recipes", "show", "rq-kmeans")
    (line,) = [line for line in show.out.splitlines() if line.startswith("tokenizer.restarts ")]
    assert " ".join(line.split()) == (
        "tokenizer.restarts 3 a whole number at least 1 Restarts of k-means; the best run is kept."
    )
    assert "rq-vae" in next(line for line in show.out.splitlines() if line.startswith("tokenizer "))
    other = capsid("recipes", "show", "rq-kmeans", "--set", "tokenizer=rq-vae", "--json").json
    settings = {setting["path"]: setting for setting in other["settings"]}
    assert settings["tokenizer"]["value"] == "rq-vae"
    assert settings["tokenizer.codebooks"] == {
        "path": "tokenizer.codebooks",
        "value": [256, 256, 256],
        "type": "int list",
        "allowed": "1 or more whole numbers, each at least 1",
        "bounds": {"least": 1, "count": [1, None]},
        "about": "Codes at each depth, fewer where there are fewer different items.",
    }
    assert "capsid recipes show" in " ".join(capsid("fit", "--help").out.split())
    found = capsid("recipes", "diff", "rq-kmeans", "sasrec", "--json").json
    assert found["tokenizer.kind"] == {"rq-kmeans": "residual-kmeans", "sasrec": "atomic"}
    assert "tokenizer.kind" in capsid("recipes", "diff", "rq-kmeans", "sasrec").out
    assert capsid("recipes", "diff", "sasrec", "sasrec", "--json").json == {}


def test_doctor() -> None:
    facts = capsid("doctor", "--json").json
    assert facts["capsid"] == __version__
    assert facts["libraries"]["torch"]
    assert facts["sgemm_gflops"] > 0
    assert "GFLOP/s" in capsid("doctor").out


@pytest.mark.parametrize(
    ("first", "second", "shown"),
    [
        ("letter", "lc-rec", ("encoder", "tokenizer.terms", "tokenizer.start")),
        ("lc-rec", "tiger", ("tokenizer.codebooks", "tokenizer.assign", "tokenizer.training.batch_size", "collisions")),
        (
            "sa2crq",
            "tiger",
            ("tokenizer.codebooks", "tokenizer.head", "tokenizer.extra", "tokenizer.crowd", "collisions"),
        ),
    ],
)
def test_neighbours_show_what_their_papers_change(first: str, second: str, shown: tuple[str, ...]) -> None:
    lines = [line.split()[0] for line in capsid("recipes", "diff", first, second).out.splitlines() if "." in line]
    paths = [line for line in lines if line.split(".")[0] in ("encoder", "tokenizer", "collisions", "generator")]
    assert all(path.startswith(shown) for path in paths), paths
    assert all(any(path.startswith(part) for path in paths) for part in shown if "." in part)
