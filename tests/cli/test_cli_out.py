"""What `--out` may do: write new places, replace its own kind when asked, and nothing else."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from cli_world import Answer, capsid, contents, lines, settings
from safetensors.torch import load_file

from capsid.base.storage.arrays import load_arrays
from capsid.base.storage.artifacts import reserved


def refused(answer: Answer, *texts: str) -> None:
    assert answer.code == 1, (answer.code, answer.err)
    assert answer.err.count("error: ") == answer.err.count("hint: ") == 1, answer.err
    for text in texts:
        assert text in answer.err


@pytest.fixture
def items(tmp_path: Path) -> Path:
    path = tmp_path / "items.jsonl"
    path.write_text('{"item_id": "new", "title": "amber 0 birch 0 cedar 0 item 9"}\n')
    return path


def file_verbs(run: Path, items: Path) -> list[list[object]]:
    """Every verb that writes a file."""
    return [
        ["predict", run, "-k", 3, "--out"],
        ["tokenizer", "export", run, "--out"],
        ["tokenizer", "encode", run, "--items", items, "--out"],
    ]


def folder_verbs(run: Path, shop: Path, items: Path) -> list[tuple[str, list[object]]]:
    """Every verb that writes a folder, after the kind of what it writes."""
    tiny = ["--set", "tokenizer.codebooks=4,4"]
    return [
        ("run", ["fit", "popularity", "--data", shop, "--out"]),
        ("run", ["tokenizer", "add", run, "--items", items, "--out"]),
        ("tokenizer", ["tokenizer", "fit", "rq-kmeans", "--data", shop, *tiny, "--out"]),
        ("dataset", ["data", "import", shop, "--out"]),
    ]


def test_devices_and_pipes_are_written_through(fitted: Path, items: Path, tmp_path: Path) -> None:
    for number, verb in enumerate(file_verbs(fitted, items)):
        answer = capsid(*verb, "/dev/null")
        assert (answer.code, answer.out) == (0, "")
        assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
        printed = capsid(*verb, "-")
        assert capsid(*verb, "/dev/stdout").out == printed.out != ""
        pipe = tmp_path / f"pipe{number}"
        os.mkfifo(pipe)
        read: list[str] = []
        reader = threading.Thread(target=lambda pipe=pipe, read=read: read.append(pipe.read_text()))  # type: ignore[misc]
        reader.start()
        assert capsid(*verb, pipe).code == 0
        reader.join()
        assert read == [printed.out]
        assert stat.S_ISFIFO(os.stat(pipe).st_mode)
    refused_full = capsid(*file_verbs(fitted, items)[0], "/dev/full")
    assert (refused_full.code, "No space left" in refused_full.err) == (1, True)


def test_files_are_replaced_only_with_force(fitted: Path, items: Path, tmp_path: Path) -> None:
    for verb in file_verbs(fitted, items):
        out = tmp_path / "out.jsonl"
        out.write_text("mine\n")
        refused(capsid(*verb, out), f"{out} exists already", "--force")
        assert out.read_text() == "mine\n"
        assert capsid(*verb, out, "--force").code == 0
        assert len(lines(out)) > 0
        out.write_text("")
        assert capsid(*verb, out).code == 0, "an empty file holds nothing to lose"
        link = tmp_path / "link.jsonl"
        link.symlink_to(out)
        assert capsid(*verb, link, "--force").code == 0
        assert link.is_symlink()
        link.unlink()


def test_files_of_artifacts_are_never_written(fitted: Path, run: Path, items: Path) -> None:
    before = contents(run)
    for verb in file_verbs(fitted, items):
        for name in ("about.json", "tokenizer/ids.json", "new.jsonl", "evaluations/test.json"):
            refused(capsid(*verb, run / name, "--force"), "is inside", "choose a path outside of it")
    assert contents(run) == before


def test_folders_are_replaced_only_by_their_kind_and_only_when_asked(
    fitted: Path, shop: Path, items: Path, tmp_path: Path
) -> None:
    for number, (kind, verb) in enumerate(folder_verbs(fitted, shop, items)):
        out = tmp_path / f"out{number}"
        assert capsid(*verb, out).code == 0
        before = contents(out)
        if verb[0] != "fit":  # the same fit again finds its run
            refused(capsid(*verb, out), f"holds a finished {kind}", "--force")
        assert contents(out) == before
        assert capsid(*verb, out, "--force").code == 0
        for other_kind, other in folder_verbs(fitted, shop, items):
            if other_kind != kind:
                refused(capsid(*other, out, "--force"), f"holds a {kind}, not a {other_kind}", "choose another --out")
        refused(capsid(*verb, out / "below"), "is inside")
        assert sorted(p.name for p in tmp_path.glob(".*")) == []


def test_a_damaged_run_is_replaced_only_with_force(run: Path, shop: Path) -> None:
    (run / "log.json").write_text("[]")
    refused(
        capsid("fit", "rq-kmeans", "--data", shop, "--out", run, *settings()), "log.json was changed", "with --force"
    )
    assert (run / "log.json").read_text() == "[]"
    assert capsid("fit", "rq-kmeans", "--data", shop, "--out", run, *settings(), "--force").code == 0
    assert capsid("evaluate", run).code == 0


def test_two_processes_do_not_write_to_one_place(fitted: Path, shop: Path, items: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    program = (
        "import sys, time; from pathlib import Path; from capsid.base.storage.artifacts import reserved\n"
        "with reserved(Path(sys.argv[1]), kind='run'): print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", program, out], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    for _, verb in folder_verbs(fitted, shop, items):
        refused(capsid(*verb, out), f"another capsid process is writing to {out} (process {process.pid}, for", "--out")
    process.kill()
    process.communicate()
    assert capsid("fit", "popularity", "--data", shop, "--out", out).code == 0
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == [], "the dead process's lock is gone"


def stopped_fit(shop: Path, out: Path, *more: object) -> None:
    """A fit that was killed at its first checkpoint."""
    command = ["fit", "rq-kmeans", "--data", shop, "--out", out, *more, *settings("schedule.0.training.steps=100000")]
    process = subprocess.Popen(
        [sys.executable, "-m", "capsid", *map(str, command)],
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    work = out.parent / f".{out.name}.work"
    before = set(work.glob("*/*.checkpoint"))
    until = time.monotonic() + 120
    while set(work.glob("*/*.checkpoint")) == before:
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)
    process.kill()
    process.wait()


def test_work_of_another_seed_stays(shop: Path, fitted: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    stopped_fit(shop, out, "--seed", 7)
    (kept,) = (tmp_path / ".run.work").iterdir()
    assert capsid("fit", "rq-kmeans", "--data", shop, "--out", out, *settings()).code == 0
    assert list((tmp_path / ".run.work").iterdir()) == [kept], "the work of seed 7 was deleted"
    assert capsid("fit", "rq-kmeans", "--data", shop, "--out", out, *settings(), "--force").code == 0
    assert list((tmp_path / ".run.work").iterdir()) == [kept]


def test_a_changed_byte_in_unfinished_work_is_noticed(shop: Path, fitted: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    stopped_fit(shop, out)
    (work,) = (tmp_path / ".run.work").iterdir()
    command = ["fit", "rq-kmeans", "--data", shop, "--out", out, *settings("schedule.0.training.steps=100000")]
    (checkpoint,) = work.glob("*.checkpoint")
    tensor = next(t for n, t in load_file(checkpoint).items() if n.startswith("weights/") and t.dim() == 2)
    whole = checkpoint.read_bytes()
    place = whole.index(tensor.numpy().tobytes())
    checkpoint.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    refused(capsid(*command), "the checkpoint", "it was changed after it was written", "delete it to start over")
    # A counter in the metadata, still valid JSON.
    place = whole.index(b'\\"counters\\": [') + len(b'\\"counters\\": [')
    digit = b"1" if whole[place : place + 1] != b"1" else b"3"
    checkpoint.write_bytes(whole[:place] + digit + whole[place + 1 :])
    refused(capsid(*command), "the checkpoint", "it was changed after it was written", "delete it to start over")
    checkpoint.write_bytes(whole)
    stage = work / "tokenizer" / "ids.parquet"
    data = bytearray(stage.read_bytes())
    data[len(data) // 2] ^= 1
    stage.write_bytes(data)
    refused(capsid(*command), "ids.parquet was changed", f"delete {work / 'tokenizer'} and run again")


def test_evaluating_another_k_keeps_the_values_of_the_first(run: Path) -> None:
    assert capsid("evaluate", run, "-k", "5,10").code == 0
    first = load_arrays(run / "evaluations" / "test-filtered.npz")
    assert capsid("evaluate", run, "-k", "5").code == 0
    both = load_arrays(run / "evaluations" / "test-filtered.npz")
    assert first.keys() == both.keys()
    for name, values in first.items():
        assert (values == both[name]).all(), name
    assert capsid("compare", run, run, "--metric", "ndcg@10").code == 0
    assert capsid("evaluate", run, "-k", "20").code == 0
    assert {"recall@5", "recall@10", "recall@20"} <= load_arrays(run / "evaluations" / "test-filtered.npz").keys()
    assert capsid("evaluate", run, "-k", "3", "--no-filter-history").code == 0
    assert capsid("compare", run, run, "--metric", "ndcg@10").code == 0, "another evaluation touches none of these"


def test_a_changed_byte_in_an_evaluation_is_noticed(run: Path) -> None:
    capsid("evaluate", run)
    path = run / "evaluations" / "test-filtered.npz"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    refused(capsid("compare", run, run), "test-filtered.npz was changed", f"delete {run / 'evaluations'} and run")
    answer = capsid("evaluate", run, "-k", "5")
    assert answer.code == 0
    assert "per-user values were not stored" in answer.err
    assert "delete" in answer.err
    assert path.read_bytes() == data, "nothing is added to what was changed"


def test_names_that_are_too_long_are_said(fitted: Path, shop: Path, items: Path, tmp_path: Path) -> None:
    for verb in [*file_verbs(fitted, items), *(verb for _, verb in folder_verbs(fitted, shop, items))]:
        for name in ("x" * 300, "x" * 250):
            answer = capsid(*verb, tmp_path / name)
            refused(answer, "could not write", "File name too long")
    with pytest.raises(Exception, match="could not write"), reserved(tmp_path / ("x" * 300), kind="run"):
        pass
