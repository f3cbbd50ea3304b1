"""Text vectors as a pure map: a text's vector depends on the text alone, not on the texts that are embedded with it.

Every forward pass has one of a few fixed shapes: ROWS texts, all padded to the same multiple of STEP tokens. So a
catalogue can be cut into any shards. Knows no items.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from capsid.encode.base import l2_normalise
from capsid.encode.text import load_model, quiet, token_counts

# Texts per forward pass, the last one of a length padded, and tokens to which lengths are rounded up.
ROWS, STEP = 64, 8
# Changes when the vectors of the same texts change.
VERSION = 1


def embed_texts(name: str, texts: list[str], max_tokens: int) -> np.ndarray:
    """Vectors of length one of texts that are not empty. Shape: (texts, d)."""
    model = load_model(name)
    model.max_seq_length = max_tokens
    # Each distinct text once; short ones together.
    unique = sorted(set(texts))
    length_U = token_counts(model, unique, max_tokens)
    bucket_U = np.minimum(-(-length_U // STEP) * STEP, max_tokens)
    unique_UD: np.ndarray | None = None
    with quiet():
        for bucket in np.unique(bucket_U):
            rows = np.flatnonzero(bucket_U == bucket)
            for start in range(0, len(rows), ROWS):
                part = rows[start : start + ROWS]
                batch = [unique[row] for row in part] + [unique[part[0]]] * (ROWS - len(part))
                vectors_BD = _forward(model, batch, int(bucket))[: len(part)]
                if unique_UD is None:
                    unique_UD = np.empty((len(unique), vectors_BD.shape[1]), dtype=np.float32)
                unique_UD[part] = vectors_BD
    if unique_UD is None:
        return np.zeros((0, int(model.get_embedding_dimension())), dtype=np.float32)
    row_of = {text: row for row, text in enumerate(unique)}
    return l2_normalise(unique_UD[[row_of[text] for text in texts]])


def _forward(model: Any, batch: list[str], tokens: int) -> np.ndarray:
    """One forward pass of a fixed shape; a model without a tokenizer that pads embeds the batch its own way."""
    tokenizer = getattr(model, "tokenizer", None)
    if not callable(tokenizer):
        return np.asarray(model.encode(batch, batch_size=len(batch), show_progress_bar=False, convert_to_numpy=True))
    import torch

    features = tokenizer(batch, padding="max_length", truncation=True, max_length=tokens, return_tensors="pt")
    with torch.inference_mode():
        return model(dict(features))["sentence_embedding"].float().cpu().numpy()
