"""What the campaign of odd cases found, each as a test of its own: one sentence with a hint, nothing left behind."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_world import Answer, capsid

from capsid import load_dataset
from capsid.errors import CapsidError
from capsid.recommender import Recommender
from capsid.train.options import Training

HUGE = 10**5_000


def one_sentence(answer: Answer, *texts: str) -> None:
    assert answer.code in (1, 2), (answer.code, answer.err)
    assert answer.err.count("error: ") == answer.err.count("hint: ") == 1, answer.err
    for text in texts:
        assert text in answer.err


def test_values_in_python(fitted: Path, tmp_path: Path) -> None:
    recommender = Recommender.from_pretrained(fitted)
    calls: list[Any] = [
        *(lambda v=v: recommender.explain(v, 3) for v in (None, 7, "i0")),
        *(lambda v=v: recommender.retire(v) for v in (None, 7, "i0", ["no"])),
        *(lambda v=v: recommender.restore(v) for v in (None, 7, "i0", ["no"])),
        lambda: recommender.recommend([HUGE]),
        lambda: recommender.recommend(["i0"], HUGE),
        lambda: Training(steps=HUGE),
        lambda: Recommender.from_pretrained(tmp_path / "no"),
        lambda: recommender.add_items({"item_id": [["x"]], "title": ["x"]}),
        lambda: recommender.add_items({"item_id": ["a\tb"], "title": ["x"]}),
    ]
    for number, call in enumerate(calls):
        with pytest.raises(CapsidError) as caught:
            call()
        assert caught.value.hint, number
    assert not recommender.catalogue_.retired


# Name -> the bytes of a table, and what is said about it.
TABLES = {
    "interactions.csv.gz": (gzip.compress(b"user,item,timestamp\nu,i,1\n")[:-9], "cannot be unpacked"),
    "interactions.tsv.gz": (b"user\titem\ttimestamp\n", "cannot be unpacked"),
    "interactions.csv": (b"user,item,item,timestamp\nu,i,i,1\n", "names the column 'item' twice"),
    "interactions.tsv": (b"user\titem\ttimestamp\n", "holds no interactions"),
    "interactions.jsonl": (b'{"user": ' + b"9" * 5_000 + b"}", "broken JSON"),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables(name: str, tmp_path: Path) -> None:
    data, says = TABLES[name]
    (tmp_path / name).write_bytes(data)
    one_sentence(capsid("data", "describe", tmp_path), says)
    assert capsid("data", "check", tmp_path).code == 1


def test_blank_lines_are_no_interactions(tmp_path: Path) -> None:
    rows = [f"u{u},i{(u + t) % 3},{t}" for u in range(3) for t in range(4)]
    (tmp_path / "interactions.csv").write_text("\n".join(["user,item,timestamp", "", *rows, "", ""]))
    assert load_dataset(tmp_path).interactions == 12


def test_numbers_of_5000_digits_in_files(tmp_path: Path) -> None:
    (tmp_path / "items.jsonl").write_text(f'{{"item_id": {"9" * 5_000}}}\n')
    (tmp_path / "sequences.txt").write_text("u 1 2 3\n")
    one_sentence(capsid("data", "describe", tmp_path), "items.jsonl:1: broken JSON")
    (tmp_path / "run.toml").write_text(f"x = {'9' * 5_000}\n")
    fit = ["fit", "tiger", "--data", "no", "--out", tmp_path / "run", "--config", tmp_path / "run.toml"]
    one_sentence(capsid(*fit), "is not valid TOML")


def test_arguments(fitted: Path, shop: Path, tmp_path: Path) -> None:
    one_sentence(capsid("recommend", fitted, "--history", '"i0'), "cannot be read")
    one_sentence(capsid("data", "import", shop, "--out", tmp_path / "new", "--k-core", "0"), "must be at least 1")
    one_sentence(capsid("tokenizer", "merges", fitted, "--top", 2**63), "--top must be")
    one_sentence(capsid("predict", fitted, "--out", "/dev/full"), "No space left")
    for name in ("", "."):
        fit = ["fit", "rq-kmeans", "--data", shop, "--out", tmp_path / "run", "--vectors", name]
        one_sentence(capsid(*fit), "there is no file")
    for setting, says in {
        "generator=no-such": "generator cannot be 'no-such'",
        "generator.width.x=1": "generator.width is a value without fields",
        "tokenizer.inner=no-such": "tokenizer.inner cannot be 'no-such'",
    }.items():
        recipe = "unirec-coa" if "inner" in setting else "tiger"
        one_sentence(capsid("fit", recipe, "--data", "no", "--out", tmp_path / "run", "--set", setting), says)


def test_a_link_to_itself_is_refused_before_any_work(shop: Path, tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to("run")
    one_sentence(capsid("fit", "popularity", "--data", shop, "--out", tmp_path / "run"), "could not write")
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    (tmp_path / "link").symlink_to("new")
    assert capsid("fit", "popularity", "--data", shop, "--out", tmp_path / "link").code == 0
    assert (tmp_path / "new" / "manifest.json").is_file()
    assert (tmp_path / "link").is_symlink()


def test_a_pipe_in_place_of_the_manifest_does_not_hang(run: Path) -> None:
    (run / "manifest.json").unlink()
    os.mkfifo(run / "manifest.json")
    one_sentence(capsid("evaluate", run), "has no file manifest.json")


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import capsid; print(*sorted(set(sys.modules) - before))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert found == ["__future__", "capsid"]
