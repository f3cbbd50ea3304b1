"""Places where the CapsID paper (arXiv 2605.05096) contradicts itself, computed from its own numbers in `paper.toml`.

They are reasons not to fit our numbers to the paper's. Says nothing about ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from capsid.bench.paper import DATASETS, METRICS, paper
from capsid.evaluate.metrics import ndcg_recall_slope

# One target per user: a hit at rank 6 to 10 adds 1 / log2(rank + 1) to NDCG and 1 to recall.
LOW, HIGH = 0.2890, 0.3563
# Four printed digits: the share is known to about one part in thirty.
PRINTED = 0.012


@dataclass(frozen=True)
class Statement:
    """Two statements of the paper side by side; `agrees` is whether both can be true."""

    about: str
    agrees: bool
    detail: str


def statements() -> Iterator[Statement]:
    """What the paper says twice, or what its numbers must obey."""
    numbers = paper()
    yield _ndcg(numbers)
    yield _winner_mass(numbers)
    top5, top50 = numbers["per-position"]["capsid"][0][1], numbers["tokenizer-quality"]["capsid"][4]
    detail = f"{top50} are among the best 50, {top5} among the best 5"
    yield Statement("the first token is found no less often among 50 than among 5", top50 >= top5, detail)
    cold, tail = numbers["cold-start"]["capsid-bpe"][1], numbers["tail"]["capsid-bpe"]
    yield Statement("cold items are not easier than the tail", cold <= tail, f"cold {cold}, tail {tail}")
    plain, merged = (numbers["industrial"][row][3] for row in ("capsid", "capsid-bpe"))
    yield Statement("merges do not change collisions (check iii)", plain == merged, f"{plain} and {merged}, industrial")
    default, beauty = numbers["sensitivity"]["T=3"][1], numbers["lengths"]["beauty"]
    yield Statement("ids of Beauty have one mean length", default == beauty, f"{beauty} and {default}")
    gains = {data: _gain(numbers, data) for data in DATASETS.values()}
    smallest = min(gains, key=lambda data: gains[data])
    detail = ", ".join(f"{data} {100 * gain:.1f} %" for data, gain in gains.items())
    yield Statement("the smallest gain over ReSID is that on Beauty", smallest == "beauty", detail)
    yield Statement("centres are as wide as the embeddings they start", False, "64 (d_c) and 128 (generator)")
    yield Statement("merges add tokens to the vocabulary", False, "|V| is the sum of all K and one end token")
    yield Statement("the trie holds the items that are recommended", False, "built from training items; cold ones too")


def _ndcg(numbers: dict[str, Any]) -> Statement:
    broken = []
    for method, row in numbers["main"].items():
        for data in DATASETS.values():
            share = ndcg_recall_slope(*row[data])
            if share is not None and not LOW - PRINTED <= share <= HIGH + PRINTED:
                broken.append(f"{method} on {data} ({share:.2f})")
    return Statement("main table: NDCG is consistent with recall", not broken, "; ".join(broken) or "all rows")


def _winner_mass(numbers: dict[str, Any]) -> Statement:
    """With unit votes an agreement is at most 1 and at least -1, so T rounds leave a gap of at most 2 (T - 1)."""
    capsules, rounds, mass = (numbers["capsules"][name] for name in ("per-depth", "rounds", "winner-mass"))
    most = 1 / (1 + (capsules - 1) * math.exp(-2 * (rounds - 1)))
    detail = f"{mass} is said, {most:.2f} is possible with K={capsules} and T={rounds}"
    return Statement("the winner's weight is possible with normalised votes (appendix A.1)", mass <= most, detail)


def _gain(numbers: dict[str, Any], data: str) -> float:
    place = METRICS.index("recall@10")
    ours, theirs = (numbers["main"][row][data][place] for row in ("capsid-bpe", "resid"))
    return float(ours / theirs - 1)
