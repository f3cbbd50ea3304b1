"""CapsID ids whose neighbouring tokens are merged by SemanticBPE, and the shared generator."""

from __future__ import annotations

import dataclasses

from capsid.recipes.capsid import CAPSID
from capsid.tokenize.merging.semantic_bpe import SemanticBPE

CAPSID_BPE = dataclasses.replace(
    CAPSID,
    name="capsid-bpe",
    about="CapsID ids with neighbouring tokens merged where they go together (SemanticBPE); otherwise as capsid",
    paper="CapsID (arXiv 2605.05096), sections 3.1 to 3.4, and the appendix's details of SemanticBPE",
    deviations=(
        *CAPSID.deviations,
        "tokens are compared by the mean vectors of their items, not by centres, which are near orthogonal",
        "merges are learnt after the capsules, on final ids; the score teaches the gate, which decides",
        "pairs taken 5 times may be merged, cosine only orders them; the paper's thresholds leave next to none",
        "the routing adapters of stage 2 are off (schedule.0.adapt=routing-adapters)",
    ),
    merges=SemanticBPE(size=16_384, passes=2, min_count=5, theta=(0.9, -1.0)),
)
