"""Maps depths of items to their tokens, for terms that replace tokens by soft codes. Knows layouts only."""

from __future__ import annotations

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from capsid.ids.layout import TokenLayout
from capsid.ragged import Ragged


def per_token(depths_ULD: Tensor, tokens: Ragged, layout: TokenLayout) -> Tensor:
    """The sum over the depths that each token spans; none for suffix and end tokens. Shape: (tokens, D)."""
    running_ULD = F.pad(depths_ULD.cumsum(1), (0, 0, 1, 0))
    item_R = tokens.row_numbers
    spans_R = code_spans(layout)[tokens.values]
    start_R = np.where(spans_R > 0, layout.depth_of[tokens.values], 0)
    return running_ULD[item_R, start_R + spans_R] - running_ULD[item_R, start_R]


def code_spans(layout: TokenLayout) -> np.ndarray:
    """How many codes every token stands for. Shape: (vocabulary,)."""
    out = ((layout.depth_of >= 0) & (layout.depth_of < len(layout.sizes))).astype(np.int64)
    if len(layout.merges):
        out[layout.merges.first :] = layout.merges.members.lengths
    return out
