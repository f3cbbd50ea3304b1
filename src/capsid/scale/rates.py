"""What the stages of a large job cost per unit: processor seconds and bytes, as measured.

The values are those of `benchmarks/results/rates.json` (`python benchmarks/rates.py`), but those of the largest runs in
`interactions.json` for `prepare` and in `end_to_end.json` for `ids`, which also read and write files. One thread of an
AMD EPYC at default settings, vectors of 128 numbers. `capsid plan --measure` measures again, with small jobs only.
Knows no workload.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

MB = 1_000_000


@dataclass(frozen=True)
class Growth:
    """Cost of a unit at K codes per depth and L depths: `each` + `depth` L + `codes` K L + `scores` K L L."""

    each: float = 0.0
    depth: float = 0.0
    codes: float = 0.0
    scores: float = 0.0

    def at(self, codes: int, depth: int) -> float:
        """The cost at these sizes."""
        return self.each + self.depth * depth + self.codes * codes * depth + self.scores * codes * depth * depth


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Processor seconds per unit, measured, and bytes per unit.

    Bytes are those of `benchmarks/results/trie.json` and of files that the stages write; they do not vary by machine.
    """

    prepare: float = 2.35e-06
    """Seconds per interaction: read, number, 5-core, sort, write as mapped histories."""
    text: float = 0.00618
    """Seconds per text of 26 tokens with MiniLM."""
    fit: Growth = Growth(codes=3.8e-07)
    """Seconds per row of the tokenizer's sample."""
    encode: Growth = Growth(each=1.28e-05, codes=3.16e-08)
    """Seconds per item."""
    ids: Growth = Growth(each=4.15e-06)
    """Seconds per item: reading codes, collisions, tokens, writing and trie."""
    train: Growth = Growth(depth=4.01e-05, scores=6.6e-09)
    """Seconds per interaction and epoch of the timeline generator."""
    train_t5: Growth = Growth(depth=0.000531)
    """The same of the encoder-decoder with a causal encoder."""
    rank: Growth = Growth(depth=0.000529, scores=2.89e-07)
    """Seconds per user, beam 50."""
    rank_t5: Growth = Growth(depth=0.00584, scores=4.65e-07)
    """The same with the encoder-decoder."""

    def to_dict(self) -> dict[str, float | dict[str, float]]:
        """Plain values."""
        return dataclasses.asdict(self)
