"""Bad input to every verb: one clear sentence, a hint, exit code 1 or 2, and earlier outputs as they were."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_world import Answer, capsid, contents, settings

from capsid.base.storage.artifacts import new_folder


def refused(answer: Answer, code: int, *texts: str) -> None:
    assert answer.code == code, answer.err
    assert answer.out == ""
    assert answer.err.count("error: ") == 1
    assert "Traceback" not in answer.err
    for text in texts:
        assert text in answer.err


def verbs_on(run: Path, tmp_path: Path) -> list[list[object]]:
    """Every verb that reads a run."""
    return [
        ["evaluate", run],
        ["predict", run, "--out", tmp_path / "p.jsonl"],
        ["recommend", run, "--history", "i1"],
        ["tokenizer", "report", run],
        ["tokenizer", "inspect", run, "i1"],
        ["tokenizer", "export", run, "--out", tmp_path / "ids.jsonl"],
        ["tokenizer", "encode", run, "--items", tmp_path / "items.jsonl"],
    ]


def test_no_such_run(tmp_path: Path) -> None:
    for arguments in verbs_on(tmp_path / "nothing", tmp_path):
        refused(capsid(*arguments), 1, "there is no folder")
    assert list(tmp_path.iterdir()) == []


def test_half_written_run(run: Path, tmp_path: Path, shop: Path) -> None:
    (run / "manifest.json").unlink()
    before = contents(tmp_path)
    for arguments in verbs_on(run, tmp_path):
        refused(capsid(*arguments), 1, "is not a finished capsid folder", "hint: ")
    answer = capsid("fit", "rq-kmeans", "--data", shop, "--out", run, *settings())
    refused(answer, 1, "holds files that capsid did not write", "hint: choose another --out")
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    "file", ["generator.safetensors", "tokenizer/ids.parquet", "tokenizer/vectors.npy", "split.npz", "items.parquet"]
)
def test_one_changed_byte_is_noticed(run: Path, tmp_path: Path, file: str) -> None:
    data = bytearray((run / file).read_bytes())
    data[len(data) // 2] ^= 1
    (run / file).write_bytes(data)
    for arguments in verbs_on(run, tmp_path):
        refused(capsid(*arguments), 1, f"{file} was changed after it was written", "hint: ")
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    assert not (run / "evaluations").exists()


def test_a_broken_manifest_is_no_traceback(run: Path, tmp_path: Path) -> None:
    for text in ("{", "[]", '{"format": 1, "kind": "run"}', '{"format": 99, "kind": "run", "files": {}}'):
        (run / "manifest.json").write_text(text)
        for arguments in verbs_on(run, tmp_path):
            refused(capsid(*arguments), 1, "manifest.json" if "99" not in text else "format 99")


def test_wrong_kind_of_folder(shop: Path, tmp_path: Path) -> None:
    for arguments in verbs_on(shop, tmp_path):
        refused(capsid(*arguments), 1, "holds a dataset, not a run")


FIT = [
    (["rq-kmeens", "--data", "planted"], 2, ["there is no recipe 'rq-kmeens'", "did you mean 'rq-kmeans'"]),
    (["sasrec", "--data", "plantd"], 1, ["no dataset and no folder called 'plantd'", "did you mean 'planted'?"]),
    (["sasrec", "--data", "planted", "--set", "generator.widht=3"], 2, ["no field 'widht'", "did you mean 'width'"]),
    (["sasrec", "--data", "planted", "--set", "generatr.width=3"], 2, ["no field 'generatr'", "'generator'"]),
    (
        ["sasrec", "--data", "planted", "--set", "generator.width=wide"],
        2,
        ["generator.width must be", "got 'wide'"],
    ),
    (["sasrec", "--data", "planted", "--set", "generator.width"], 2, ["is not a setting", "part.field=value"]),
    (["sasrec", "--data", "planted", "--set", "generator=3"], 2, ["generator cannot be '3'", "timeline"]),
    (["sasrec", "--data", "planted", "--set", "schedule.7.name=x"], 2, ["'7' does not select", "count from 0"]),
    (["sasrec", "--data", "planted", "--set", "schedule.0.training.steps=0"], 2, ["must be at least 1"]),
    (
        ["bert4rec", "--data", "planted", "--set", "generator.width=33"],
        2,
        ["must be a multiple of generator.heads", "32"],
    ),
    (
        ["sasrec", "--data", "planted", "--checkpoint-every", "-1"],
        2,
        ["--checkpoint-every must be at least 0, got -1", "hint: "],
    ),
    (
        ["sasrec", "--data", "planted", "--set", "schedule.0.training.checkpoint_seconds=5"],
        2,
        ["no field 'checkpoint_seconds'", "use --checkpoint-every"],
    ),
]


@pytest.mark.parametrize(("arguments", "code", "texts"), FIT, ids=lambda v: " ".join(v) if isinstance(v, list) else "")
def test_fit(arguments: list[str], code: int, texts: list[str], tmp_path: Path) -> None:
    refused(capsid("fit", *arguments, "--out", tmp_path / "run"), code, *texts)
    assert not (tmp_path / "run").exists()
    if "width=33" not in arguments[-1]:
        refused(capsid("tokenizer", "fit", *arguments, "--out", tmp_path / "tok"), code, *texts)
    assert not (tmp_path / "tok").exists()


@pytest.mark.parametrize("verb", [["fit"], ["tokenizer", "fit"]])
def test_places_where_nothing_can_be_written(verb: list[str], shop: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    before = contents(tmp_path)
    command = [*verb, "popularity", "--data", shop, "--out"]
    refused(capsid(*command, tmp_path / "file"), 1, "exists and is not a folder", "hint: choose another --out")
    refused(capsid(*command, tmp_path / "file" / "run"), 1, "could not write")
    refused(capsid(*command, tmp_path / "mine"), 1, "holds files that capsid did not write", "hint: ")
    assert contents(tmp_path) == before


def test_evaluate_and_predict(run: Path, tmp_path: Path) -> None:
    capsid("evaluate", run)
    before = contents(run)
    for k in ("0", "-1", "ten", "5,,10", "", "1.5"):
        refused(capsid("evaluate", run, "-k", k), 2, "-k must be", "hint: ")
    refused(capsid("evaluate", run, "--split", "tset"), 1, "there is no split 'tset'", "hint: allowed: valid, test")
    old = tmp_path / "old.jsonl"
    old.write_text("earlier\n")
    refused(
        capsid("predict", run, "-k", 0, "--out", old), 2, "-k must be a whole number from 1 to 100,000, got 0", "hint: "
    )
    refused(capsid("predict", run, "--split", "train", "--out", old, "--force"), 1, "there is no split 'train'")
    refused(capsid("predict", run, "--out", tmp_path), 1, "is a folder", "hint: ")
    refused(capsid("predict", run, "--out", old / "under"), 1, "could not write", "hint: ")
    assert contents(run) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["old.jsonl", "run"]
    assert old.read_text() == "earlier\n"


def test_recommend(fitted: Path) -> None:
    command = ["recommend", fitted, "--history"]
    refused(capsid(*command, "i1,i777"), 1, "there is no item 'i777' among the 64 items", "did you mean 'i7' (amber")
    refused(capsid(*command, "i1,amber 0 birch 0 cedar 1 item 2"), 1, "did you mean 'i6' (amber")
    refused(capsid(*command, "i1", "--deny", "zzz"), 1, "there is no item 'zzz'", "hint: use the item ids of your data")
    refused(capsid(*command, "i1", "--allow", "i2", "--deny", "i2"), 1, "leave no item", "hint: ")
    refused(capsid(*command, "i1", "-k", 0), 2, "-k must be a whole number from 1 to 100,000, got 0", "hint: ")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--port", "70000", "--port must be from 0 to 65535, got 70000"),
        ("--body-limit", "0", "--body-limit must be at least 1024, got 0"),
        ("--rate-limit", "-1", "--rate-limit must be at least 0, got -1\n"),
    ],
)
def test_serve_names_the_option(fitted: Path, option: str, value: str, message: str) -> None:
    refused(capsid("serve", fitted, option, value), 2, message, "hint: ")


def test_tokenizer(fitted: Path, tmp_path: Path) -> None:
    refused(capsid("tokenizer", "inspect", fitted, "i777"), 1, "there is no item 'i777'", "did you mean 'i7'")
    refused(capsid("tokenizer", "export", fitted, "--out", tmp_path), 1, "is a folder", "hint: ")
    command = ["tokenizer", "encode", fitted, "--items"]
    refused(capsid(*command, tmp_path / "none.jsonl"), 1, "there is no file", "hint: ")
    files = {
        "items.txt": ("x", "--items must end in .jsonl"),
        "broken.jsonl": ('{"item_id": "a", "title": "x"}\n{"item_id": \n', "broken.jsonl:2: broken JSON"),
        "twice.jsonl": ('{"item_id": "a"}\n{"item_id": "a"}\n', "item 'a' already occurs on line 1"),
        "twice.csv": ("item_id,title\na,x\na,y\n", "twice.csv:3: item 'a' occurs twice"),
        "noid.csv": ("title\nx\n", "no column for the item"),
        "gap.csv": ("item_id,title\n,x\n", "gap.csv:2: the item's id is missing"),
        "notext.jsonl": ('{"item_id": "new"}\n', "are all zeros: 'new'"),
        "empty.csv": ("", "is empty"),
        "not.parquet": ("nothing of the kind", "cannot be read"),
    }
    for name, (text, message) in files.items():
        (tmp_path / name).write_text(text)
        refused(capsid(*command, tmp_path / name, "--out", tmp_path / "out.jsonl"), 1, message)
    assert not (tmp_path / "out.jsonl").exists()


def test_one_token_ids_cannot_name_new_items(shop: Path, tmp_path: Path) -> None:
    capsid("tokenizer", "fit", "sasrec", "--data", shop, "--out", tmp_path / "t")
    (tmp_path / "new.jsonl").write_text('{"item_id": "new", "title": "x"}\n')
    answer = capsid("tokenizer", "encode", tmp_path / "t", "--items", tmp_path / "new.jsonl")
    assert answer.code == 1
    assert "one-token ids cannot name new items" in answer.err


def test_demo_and_recipes(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    refused(capsid("demo", "--out", tmp_path / "file"), 1, "is not a folder", "hint: ")
    for arguments in (["show", "tigr"], ["diff", "sasrec", "sasrek"]):
        refused(capsid("recipes", *arguments), 2, "there is no recipe", "allowed: ")


def test_an_evaluation_that_cannot_be_kept_is_still_printed(run: Path) -> None:
    with new_folder(run / "evaluations", kind="something else"):
        pass
    answer = capsid("evaluate", run, "--json")
    assert answer.json["users"] == 120
    assert "were not stored" in answer.err
