"""Training at a constant rate without decay and clipping, for small networks with much dropout: what several recipes
share. The weights to keep are chosen by NDCG@10 of all validation users, without items of their histories."""

from __future__ import annotations

from capsid.train.options import Training

LONG_TRAINING = Training(
    batch_size=256,
    final_rate=1.0,
    warmup=0.0,
    weight_decay=0.0,
    beta2=0.999,
    # Never reached, so gradients are not clipped.
    clip=1_000.0,
    ema=0.995,
    validate_every=440,
    patience=5,
    validation_users=1_000_000,
    select="ndcg@10",
    select_filtered=True,
)
