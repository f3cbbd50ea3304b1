"""Measures the rates that `capsid plan` uses, on this machine, in processor time.

    python benchmarks/rates.py [--quick] [--threads 1] [--out FILE]

The values in `capsid/scale/plan.py` are those of benchmarks/results/rates.json, except `prepare` and `ids`, which are
those of the largest runs of benchmarks/interactions.py and benchmarks/end_to_end.py; a test compares them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from common import machine, write_result

from capsid.scale.measure import DEPTH, DIM, HISTORY, SIZES, measured

FULL = {"rows": 8_192, "interactions": 200_000, "items": 50_000, "users": 32}
QUICK = {"rows": 600, "interactions": 2_000, "items": 1_000, "users": 4}


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes; writes only to --out")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    torch.set_num_threads(args.threads)
    facts, sizes = machine(args.threads), QUICK if args.quick else FULL
    result = {"machine": facts, "rates": measured(**sizes).to_dict()}
    for name, rate in result["rates"].items():
        print(f"{name:10s} {rate}")
    if args.out or not args.quick:
        config = {**sizes, "depth": DEPTH, "dim": DIM, "history": HISTORY, "codes": SIZES, "beam": 50}
        write_result("rates", args.out, {**config, "threads": args.threads, "quick": args.quick}, result)
    return result


if __name__ == "__main__":
    main()
