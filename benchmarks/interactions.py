"""What it costs to import interactions that are larger than memory: processor time and peak memory at several sizes.

    python benchmarks/interactions.py [--quick] [--rows 3.3M,33M] [--core 5] [--work DIR] [--out FILE]

The data is made: ids are texts of 10 characters, users and items have power-law activity in the proportions of the
CapsID paper's industrial data (38.5 interactions per user, 9.2 per item), rows are nearly in time order, and times have
ties. It is written as Parquet in parts of a million rows, imported by `capsid data import --mapped --k-core 5` in a
process of its own, checked, and deleted.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from common import gigabytes, machine, write_result

from capsid.base.storage.mapped_arrays import array_blocks

PART = 1_000_000
PER_USER, PER_ITEM = 38.5, 9.25
FULL, QUICK = "3.3M,33M", "5k"
UNITS = {"k": 1_000, "M": 1_000_000}

WORKER = """
import json, re, resource, sys
from pathlib import Path
from capsid.cli.main import run
code = run(sys.argv[2:])
status = Path("/proc/self/status").read_text()
sizes = {n: 1024 * int(re.search(rf"{n}:\\s+(\\d+)", status)[1]) for n in ("VmHWM",)}
used = resource.getrusage(resource.RUSAGE_SELF)
Path(sys.argv[1]).write_text(json.dumps(
    {"code": code, "peak_bytes": sizes["VmHWM"], "user_seconds": used.ru_utime, "system_seconds": used.ru_stime}))
"""


def make_parts(folder: Path, rows: int) -> int:
    """Write made interactions in parts; returns their bytes on disk. The same rows for the same number."""
    users, items = max(int(rows / PER_USER), 3), max(int(rows / PER_ITEM), 3)
    folder.mkdir(parents=True)
    for number, start in enumerate(range(0, rows, PART)):
        rng, count = np.random.default_rng([rows, number]), min(PART, rows - start)
        # A power of a uniform number: rank r is drawn in proportion to r ** (1 / power - 1).
        user, item = (
            (users * rng.random(count) ** 1.5).astype(np.int64),
            (items * rng.random(count) ** 3).astype(np.int64),
        )
        stamps = 1_500_000_000 + np.arange(start, start + count) // 10 + rng.integers(0, 100_000, count)
        frame = pl.DataFrame({"user_id": _texts("U", user), "item_id": item_texts(item), "timestamp": stamps})
        frame.write_parquet(folder / f"part-{number:05d}.parquet", compression="zstd", compression_level=1)
    return sum(path.stat().st_size for path in folder.iterdir())


def item_texts(numbers: np.ndarray) -> pl.Series:
    """The ids of made items."""
    return _texts("B", numbers)


def _texts(letter: str, numbers: np.ndarray) -> pl.Series:
    # Scrambled, so that neighbouring numbers are not neighbouring texts: an odd factor is a bijection modulo 2**29.
    scrambled = pl.Series(numbers * 0x2545F491 % 2**29)
    return letter + scrambled.cast(pl.String).str.zfill(9)


def imported(folder: Path, out: Path, core: int) -> dict[str, Any]:
    """Import in a process of its own."""
    answer_file = out.with_suffix(".json")
    command = [sys.executable, "-c", WORKER, answer_file, "data", "import", folder, "--out", out, "--mapped"]
    began = time.perf_counter()
    subprocess.run([*map(str, command), "--k-core", str(core)], check=True, stdout=subprocess.DEVNULL)
    answer = json.loads(answer_file.read_text())
    assert answer.pop("code") == 0, "the import failed"
    return {"seconds": time.perf_counter() - began, **answer}


def checked(out: Path, core: int) -> dict[str, int]:
    """Sizes of the result; it must be a k-core with every history in time order."""
    offsets = np.load(out / "offsets.npy")
    items = len(np.load(out / "items.offsets.npy", mmap_mode="r")) - 1
    counts_I = np.zeros(items, dtype=np.int64)
    for block in array_blocks(out / "sequences.npy", PART):
        np.add.at(counts_I, block, 1)
    lengths = np.diff(offsets)
    assert counts_I.min() >= core, "an item has too few interactions"
    assert lengths.min() >= core, "a user has too few interactions"
    last, position, begins = None, 0, offsets[:-1]
    for times in array_blocks(out / "times.npy", PART):
        falls = np.flatnonzero(np.diff(times, prepend=times[0] if last is None else last) < 0) + position
        assert np.isin(falls, begins, assume_unique=True).all(), "a history is not in time order"
        last, position = times[-1], position + len(times)
    return {"users": len(lengths), "items": items, "interactions": int(offsets[-1])}


def measure(rows: int, core: int, work: Path) -> dict[str, Any]:
    """Make, import, check and delete one size."""
    folder = Path(tempfile.mkdtemp(prefix="interactions-", dir=work))
    try:
        source = make_parts(folder / "tables" / "interactions", rows)
        found = imported(folder / "tables", folder / "mapped", core)
        kept = checked(folder / "mapped", core)
        size = sum(path.stat().st_size for path in (folder / "mapped").iterdir())
    finally:
        shutil.rmtree(folder)
    cpu = found["user_seconds"] + found["system_seconds"]
    result = {"rows": rows, "source_bytes": source, "result_bytes": size, "kept": kept, **found}
    return {**result, "cpu_seconds": cpu, "cpu_microseconds_per_row": 1e6 * cpu / rows}


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="five thousand rows; writes only to --out")
    parser.add_argument("--rows", help=f"sizes, such as {FULL}")
    parser.add_argument("--core", type=int, default=5)
    parser.add_argument("--work", type=Path, help="where the data is made; default: the folder for temporary files")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    facts, sizes = machine(1), []
    for text in (args.rows or (QUICK if args.quick else FULL)).split(","):
        rows = round(float(text.rstrip("kM")) * UNITS.get(text[-1], 1))
        found = measure(rows, args.core, args.work)
        sizes.append(found)
        print(
            f"{rows:,} rows: {found['cpu_seconds']:.1f} cpu s ({found['cpu_microseconds_per_row']:.2f} us per row), "
            f"{found['seconds']:.0f} s, peak {gigabytes(found['peak_bytes'])}, kept {found['kept']}",
            flush=True,
        )
    result = {"machine": facts, "sizes": sizes}
    if args.out or not args.quick:
        config = {"core": args.core, "part_rows": PART, "per_user": PER_USER, "per_item": PER_ITEM, "quick": args.quick}
        write_result("interactions", args.out, config, result)
    return result


if __name__ == "__main__":
    main()
