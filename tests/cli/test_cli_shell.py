"""Around the verbs: settings from a file, completion, quiet runs, versions."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from cli_world import TINY, capsid, contents, settings

from capsid.cli.input_files import all_settings, read_settings
from capsid.errors import ConfigError
from capsid.recipes import get_recipe

TOML = """
generator = { layers = 1, heads = 2, width = 16, feedforward = 32, history = 6 }
[tokenizer]
codebooks = [8, 8]
[decoder]
width = 20
[[schedule]]
training = { steps = 40, batch_size = 32, validate_every = 20, learning_rate = 0.01, validation_users = 50 }
"""


def test_a_file_says_what_options_say(shop: Path, fitted: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(TOML)
    assert sorted(read_settings(file)) == sorted(TINY)
    answer = capsid("fit", "rq-kmeans", "--data", shop, "--out", tmp_path / "run", "--config", file)
    assert answer.code == 0, answer.err
    same, other = contents(tmp_path / "run"), contents(fitted)
    assert {n for n in same if same[n] != other[n]} <= {"log.json", "manifest.json"}


def test_an_option_has_the_last_word(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[generator]\nkind = "transformer"\nlayers = 3\nwarm_start = false\n')
    recipe = get_recipe("rq-kmeans").with_settings(all_settings(file, ["generator.layers=2"]))
    assert (recipe.generator.kind, recipe.generator.layers, recipe.generator.warm_start) == ("transformer", 2, False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[generator", "not valid TOML"),
        ("generator.widht = 3", "no field 'widht'"),
        ("[generator]\nwidth = 0", "at least 1"),
    ],
)
def test_a_wrong_file_is_one_sentence(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(text)
    command = ["fit", "rq-kmeans", "--data", "planted", "--out", tmp_path / "run", "--config", tmp_path / "run.toml"]
    answer = capsid(*command)
    assert (answer.code, message in answer.err, "hint: " in answer.err) == (2, True, True), answer.err
    with pytest.raises(ConfigError, match="cannot be read"):
        read_settings(tmp_path / "none.toml")


def complete(*words: str) -> list[str]:
    environment = {**os.environ, "_CAPSID_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words)}
    environment["COMP_CWORD"] = str(len(words) - 1)
    done = subprocess.run([sys.executable, "-m", "capsid"], env=environment, capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_shells_can_complete() -> None:
    assert complete("capsid", "rec") == ["recipes", "recommend"]
    assert complete("capsid", "fit", "--da") == ["--data"]
    for wrong in ("recomend", "nothing"):
        complete("capsid", wrong, "--da")  # A wrong word is no error while a line is being written.
    for shell in ("bash", "zsh", "fish"):
        assert "_CAPSID_COMPLETE" in capsid("completion", shell).out
    assert subprocess.run(["bash", "-n"], input=capsid("completion", "bash").out, text=True).returncode == 0
    answer = capsid("completion", "tcsh")
    assert (answer.code, "allowed: bash, zsh, fish" in answer.err) == (2, True)


def test_quiet_tells_errors_only(shop: Path, tmp_path: Path) -> None:
    command = ["tokenizer", "fit", "rq-kmeans", "--data", shop, *settings()[:2], "--out"]
    quiet = capsid("--quiet", *command, tmp_path / "quiet")
    assert (quiet.code, quiet.err) == (0, "")
    assert capsid(*command, tmp_path / "loud").err != "", "one quiet command does not silence the next"
    assert "error: " in capsid("-q", *command, tmp_path / "quiet").err


def test_versions_of_libraries() -> None:
    out = capsid("--version").out.splitlines()
    assert out[0].startswith("capsid ")
    assert f"torch {metadata.version('torch')}" in out
