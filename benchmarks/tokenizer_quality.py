"""Quality of the CapsID tokenizer's ids, compared with residual k-means on the same vectors, cut to the same lengths.

    python benchmarks/tokenizer_quality.py DATA [DATA ...] --out results/tokenizers

Fits `capsid` and its variants on each dataset and writes one JSON file per dataset: for each tokenizer its settings and
the numbers of `capsid tokenizer report`. Every row has a twin: residual k-means whose codes are cut to each item's own
length. Rows that exist with the same settings are kept, so a stopped run resumes. No generator is trained here.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from common import machine

from capsid.base.config import override, to_dict
from capsid.base.storage.artifacts import read_json, write_json
from capsid.data.item_table import ItemTable
from capsid.data.sources import load_dataset
from capsid.data.split import leave_one_out
from capsid.encode.cache import encode_items
from capsid.evaluate.tokenizer_quality import tokenizer_quality
from capsid.ids.semantic_ids import SemanticIds
from capsid.progress import Console, Progress
from capsid.ragged import Ragged
from capsid.recipes import get_recipe
from capsid.tokenize.rivals.quantisers import ResidualKMeans

PAPER_STOP = {"codebooks": "256,256,256,256,256,256", "confidence": "0.82", "residual": "0.08", "max_sharing": "0"}
FIXED = {"confidence": "1", "max_sharing": "0"}
VARIANTS: dict[str, dict[str, str]] = {
    "capsid": {},
    "stop: confidence .82": PAPER_STOP,
    "stop: confidence .82 and own prefix": {**PAPER_STOP, "max_sharing": "1"},
    "at most 3 codes": {"codebooks": "256,256,256"},
    "fixed length 2": {**FIXED, "codebooks": "256,256"},
    "fixed length 4": FIXED,
    "hard winner": {"winner": "hard"},
    "T=1": {"rounds": "1"},
    "T=2": {"rounds": "2"},
    "T=5": {"rounds": "5"},
    "300 steps": {"training.steps": "300"},
    "300 steps, full poses": {"training.steps": "300", "poses": "full"},
    "300 steps, no spread": {"training.steps": "300", "spread_weight": "0"},
    "votes 64 wide": {"dim": "64"},
}
TWIN = "residual_kmeans_cut_to_the_same_lengths"
PAPER_BEAUTY = {
    "collision_rate": 0.134,
    "utilization": 0.551,
    "gini": 0.23,
    "intra_code_similarity": 0.728,
    "mean_length": 3.41,
    "winner_mass": 0.86,
    "stop_causes": {"confidence": [0.55, 0.66], "residual": [0.25, 0.35], "cap": [0.08, 0.10]},
}


def measure(data: str, variants: list[str], seed: int, out: Path, progress: Progress) -> None:
    """All variants on one dataset, each row written when it is known."""
    dataset = load_dataset(data)
    recipe = get_recipe("capsid")
    table = ItemTable.from_training(dataset, leave_one_out(dataset).train)
    _, vectors_ND = encode_items(recipe.encoder, table, seed=seed, progress=progress)
    table = table.with_block("item", vectors_ND)
    twin = ResidualKMeans(codebooks=(256,) * 6).fit(table, seed=seed)
    codes_ND = twin.encode(table).dense()
    path = out / f"{dataset.name}.json"
    about = {"dataset": dataset.name, "items": len(table), "seed": seed, "encoder": to_dict(recipe.encoder)}
    stored = read_json(path) if path.exists() else {}
    rows = stored["rows"] if all(stored.get(key) == value for key, value in about.items()) else {}
    for name in variants:
        tokenizer: Any = recipe.tokenizer
        for field, value in VARIANTS[name].items():
            tokenizer = override(tokenizer, field, value)
        if rows.get(name, {}).get("settings") != json.loads(json.dumps(to_dict(tokenizer))):
            rows[name] = _row(tokenizer, table, vectors_ND, twin, codes_ND, seed, progress)
            out.mkdir(parents=True, exist_ok=True)
            write_json(path, {**about, "rows": rows, "paper_on_beauty": PAPER_BEAUTY, "machine": machine(1)})
        progress.line(_line(name, rows[name]))


def _row(
    tokenizer: Any,
    table: ItemTable,
    vectors_ND: np.ndarray,
    twin: ResidualKMeans,
    codes_ND: np.ndarray,
    seed: int,
    progress: Progress,
) -> dict[str, Any]:
    began = time.process_time()
    tokenizer.fit(table, seed=seed, progress=progress)
    seconds = time.process_time() - began
    codes = tokenizer.encode(table)
    ids = SemanticIds.assign(table.items, codes, tokenizer.sizes)
    cut = Ragged.from_dense(codes_ND[:, : len(tokenizer.sizes)], codes.lengths)
    cut_ids = SemanticIds.assign(table.items, cut, twin.sizes[: len(tokenizer.sizes)])
    row = {
        "settings": to_dict(tokenizer),
        "fit_cpu_seconds": round(seconds, 1),
        "report": tokenizer_quality(ids, vectors_ND, tokenizer.decode, tokenizer).to_dict(),
        TWIN: tokenizer_quality(cut_ids, vectors_ND, twin.decode).to_dict(),
    }
    plain: dict[str, Any] = json.loads(json.dumps(row))
    return plain


def _line(name: str, row: dict[str, Any]) -> str:
    mine, other = row["report"], row[TWIN]
    text = [f"{name}:"]
    for key in ("collision_rate", "utilization", "gini", "intra_code_similarity", "mean_length"):
        text.append(f"{key} {mine[key]:.3f} ({other[key]:.3f})")
    return (
        " ".join(text)
        + f" hard {np.round(mine['reconstruction']['hard'], 3)} ({np.round(other['reconstruction']['hard'], 3)})"
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", help="dataset names or folders")
    parser.add_argument("--out", type=Path, required=True, help="folder for one JSON file per dataset")
    parser.add_argument("--variant", action="append", choices=VARIANTS, help="only these (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    # A collapse is a result here: the report shows it.
    warnings.simplefilter("ignore")
    for data in options.data:
        measure(data, options.variant or list(VARIANTS), options.seed, options.out, Console())


if __name__ == "__main__":
    main()
