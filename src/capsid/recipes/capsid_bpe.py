"""CapsID ids whose neighbouring tokens are merged by SemanticBPE, with the shared generator."""

from __future__ import annotations

import dataclasses

from capsid.generate.generator import TimelineGenerator
from capsid.recipes.capsid import CAPSID
from capsid.tokenize.merging.semantic_bpe import SemanticBPE

CAPSID_BPE = dataclasses.replace(
    CAPSID,
    name="capsid-bpe",
    about="The ids of capsid (nothing is trained, ids end at a unique prefix) with frequent neighbouring tokens merged",
    paper="CapsID (arXiv 2605.05096), sections 3.1 to 3.4, and the appendix's details of SemanticBPE",
    deviations=(
        *CAPSID.deviations,
        "tokens are compared by the mean vectors of their items, not by centres, which are near orthogonal",
        "merges are learnt after the capsules, on final ids; the gate is trained on the score and decides",
        "pairs that occur 5 times may be merged, cosine only ranks them; the paper's thresholds leave almost none",
        "more dropout than recipes without merges, chosen by validation",
        "the routing adapters of stage 2 are off (schedule.0.adapt=routing-adapters)",
    ),
    # Thousands of tokens, most of them rare: twice the dropout that is best for small codebooks.
    generator=TimelineGenerator(dropout=0.4, embedding_dropout=0.4),
    merges=SemanticBPE(size=16_384, passes=2, min_count=5, theta=(0.9, -1.0)),
)
