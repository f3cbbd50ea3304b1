"""A large made catalogue from vectors to recommendations, with the commands that a user would type.

    python benchmarks/end_to_end.py [--quick] [--items 3580000] [--ids 256x4,1024x6x96] [--steps 300] [--work DIR]

Vectors are made shard by shard from the seed (see _catalogue.py), interactions as in interactions.py: 9.25 per item and
38.5 per user, drawn at random. So lists can be made, but nothing here says how good they are. For every form of ids
(codes x depth, or codes x depth x width of votes): tokenizer with merges and codes, for some forms the codes again by
two processes, ids with their trie, a generator after a brief training, one list, and lists for a file of histories.
Processor times and memory are those of each command. With --work a stopped
benchmark resumes and the data is kept; without it everything is temporary.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from _catalogue import Catalogue
from _commands import Steps
from common import folder_hash, machine, write_result
from industrial import write_vectors
from interactions import PER_ITEM, item_texts, make_parts

RECIPE = "capsid-bpe"
MADE = "made.json"
ASKED_USERS, ASKED_ITEMS, LISTED = 1_000, 20, 10


@dataclass(frozen=True)
class Form:
    """Ids of at most `depth` codes out of `codes`; `dim` is the width of votes, 0 for that of the vectors."""

    codes: int
    depth: int
    dim: int = 0

    @classmethod
    def parse(cls, text: str) -> Form:
        """From 256x4 or 1024x6x96."""
        return cls(*map(int, text.split("x")))

    @property
    def settings(self) -> list[str]:
        """As the commands take them."""
        books = ",".join([str(self.codes)] * self.depth)
        return [f"--set=tokenizer.codebooks={books}", f"--set=tokenizer.dim={self.dim}"]


def made_data(folder: Path, items: int) -> dict[str, Any]:
    """Vectors with ids, mapped interactions and a file of histories; made unless the folder has them."""
    if (folder / MADE).exists():
        made = json.loads((folder / MADE).read_text())
        assert made["items"] == items, f"{folder} holds {made['items']} items"
        return made
    began = time.process_time()
    copies = write_vectors(Catalogue(items), folder / "v.npy")
    texts = item_texts(np.arange(items))
    (folder / "v.ids.txt").write_text("".join(f"{text}\n" for text in texts))
    rows = round(items * PER_ITEM)
    make_parts(folder / "large" / "interactions", rows)
    titles = pl.Series([f"Item {number}" for number in range(items)])
    pl.DataFrame({"item_id": texts, "title": titles}).write_parquet(folder / "large" / "items.parquet")
    rng = np.random.default_rng(1)
    histories = pl.DataFrame(
        {
            "user": np.repeat(np.arange(ASKED_USERS), ASKED_ITEMS).astype(str),
            "item": texts.gather(rng.integers(0, items, ASKED_USERS * ASKED_ITEMS)),
            "timestamp": np.tile(np.arange(ASKED_ITEMS), ASKED_USERS),
        }
    )
    histories.write_parquet(folder / "asked.parquet")
    made = {"items": items, "copies": copies / items, "interactions": rows, "cpu_seconds": time.process_time() - began}
    importing = Steps(folder, "import")
    importing.run("import", "data", "import", "large", "--out=mapped", "--mapped")
    made["import"] = importing.done["import"].to_dict()
    importing.file.unlink()
    (folder / MADE).write_text(json.dumps(made))
    return made


def pipeline(folder: Path, name: str, trained: int, *, again: bool) -> dict[str, Any]:
    """All commands for one form of ids; what they write is deleted at the end. `again`: codes are also encoded."""
    form, steps, out = Form.parse(name), Steps(folder, name), folder / name
    out.mkdir(exist_ok=True)
    run = steps.run
    training = {"steps": trained, "validate_every": trained, "validation_users": 500}
    settings = (*form.settings, *(f"--set=schedule.0.training.{key}={value}" for key, value in training.items()))
    source, tok, codes = ("--data=mapped", "--vectors=v.npy"), f"{name}/tok", f"{name}/codes"
    run("tokenizer", "tokenizer", "fit", RECIPE, *source, f"--out={tok}", f"--codes={codes}", *form.settings)
    if again:
        two = ("--engine=processes", "--workers=2")
        run("encode", "vectors", "encode", tok, source[1], f"--out={name}/again", *two)
    settled = json.loads(run("ids", "vectors", "ids", tok, f"--codes={codes}", f"--out={name}/catalogue", "--json"))
    quality = json.loads(run("report", "tokenizer", "report", tok, "--json"))
    run("train", "fit", RECIPE, *source, f"--tokenizer={tok}", f"--out={name}/run", *settings)
    history = ",".join(pl.read_parquet(folder / "asked.parquet")["item"][:ASKED_ITEMS])
    one = json.loads(run("recommend", "recommend", f"{name}/run", f"--history={history}", "-k", LISTED, "--json"))
    asked = ("--histories=asked.parquet", "-k", LISTED, f"--out={name}/lists.parquet")
    run("lists", "recommend", f"{name}/run", *asked)
    lists = pl.read_parquet(out / "lists.parquet")
    result = {
        "codes": form.codes,
        "depth": form.depth,
        "dim": form.dim,
        "same_bytes_from_two_processes": folder_hash(out / "codes") == folder_hash(out / "again") if again else None,
        "settled": {key: value for key, value in settled.items() if key != "folder"},
        "quality": quality,
        "listed": {"one": len(one["items"]), "users": lists["user"].n_unique(), "rows": len(lists)},
        "disk_bytes": {part: size_of(out / part) for part in ("tok", "codes", "catalogue", "run")},
        **steps.costs(),
    }
    shutil.rmtree(out)
    steps.file.unlink()
    return result


def size_of(folder: Path) -> int:
    """Bytes of all files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2,000 items, ids of 16x3; writes only to --out")
    parser.add_argument("--items", type=int, default=3_580_000)
    parser.add_argument("--ids", default="256x4,1024x6x96", help="forms of ids")
    parser.add_argument("--again", default="256x4,16x3", help="forms whose codes are also made by two processes")
    parser.add_argument("--steps", type=int, default=300, help="training steps of the generator")
    parser.add_argument("--work", type=Path, help="where data is made, and found again")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    if args.quick:
        args.items, args.ids, args.steps = 2_000, "16x3", 5
    facts = machine(1)
    with contextlib.ExitStack() as stack:
        work = args.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        work.mkdir(parents=True, exist_ok=True)
        made = made_data(work.absolute(), args.items)
        rows = []
        for name in args.ids.split(","):
            rows += [pipeline(work.absolute(), name, args.steps, again=name in args.again.split(","))]
            print(f"{name}: {rows[-1]['cpu_seconds']:.0f} cpu s, {rows[-1]['seconds']:.0f} s", flush=True)
    result = {"machine": facts, "made": made, "rows": rows}
    if args.out or not args.quick:
        config = {name: getattr(args, name) for name in ("items", "ids", "again", "steps", "quick")}
        write_result("end_to_end", args.out, {**config, "recipe": RECIPE}, result)
    return result


if __name__ == "__main__":
    main()
