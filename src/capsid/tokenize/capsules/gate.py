"""The merge gate: a small network that learns from the scores of pairs which of them to merge.

It is trained on pairs, alone or beside the tokenizer, and needs no sequence model: CapsID freezes it before the
generator trains (section 3.4). Knows no items.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from capsid.base.run_options import CheckpointFile
from capsid.progress import Progress
from capsid.tokenize.capsules.pairs import GUMBEL, Candidates
from capsid.tokenize.training import row_plan, share_done, train_rows, weight_source
from capsid.train.lanes import Loss
from capsid.train.options import Training

# Width of the hidden layer, and weight of the share of pairs that are merged.
HIDDEN, SPARSITY = 64, 0.01


class Gate(nn.Module):
    """Two layers on (e_s, e_s', freq, cos), two logits (CapsID, appendix A.2)."""

    def __init__(self, inputs: int, source: torch.Generator) -> None:
        super().__init__()
        self.inner = nn.Linear(inputs, HIDDEN)
        self.outer = nn.Linear(HIDDEN, 2)
        with torch.no_grad():
            for layer in (self.inner, self.outer):
                layer.weight.normal_(0.0, layer.in_features**-0.5, generator=source)
                layer.bias.zero_()

    def forward(self, x_BI: Tensor) -> Tensor:
        """Logits of (keep apart, merge). Shape: (batch, 2)."""
        return self.outer(functional.gelu(self.inner(x_BI)))


def train_gate(
    pairs: Candidates,
    profiles_VD: np.ndarray,
    teacher: Callable[[float], np.ndarray],
    training: Training,
    *,
    seed: int,
    checkpoint: CheckpointFile | None,
    progress: Progress,
) -> np.ndarray:
    """Logit of merging every pair. `teacher(share)` gives the targets after that share of training."""
    inputs = GateInputs(pairs, profiles_VD)
    gate = Gate(inputs.width, weight_source(seed, "merges"))

    def loss(rows: np.ndarray, step: int) -> Loss:
        target_B = torch.as_tensor(teacher(share_done(step, training))[rows].astype(np.int64))
        return Loss(gate_loss(gate(inputs.rows(rows)), target_B), len(rows))

    train_rows(
        gate,
        row_plan(len(pairs), training, seed),
        loss,
        training,
        name="merges",
        seed=seed,
        checkpoint=checkpoint,
        progress=progress,
    )
    return gate_logits(gate, inputs, training.batch_size)


def gate_loss(logits_B2: Tensor, target_B: Tensor) -> Tensor:
    """L_BPE: cross-entropy of the Gumbel-softmax and the targets, and the share of pairs that are merged."""
    log_pi_B2 = logits_B2.log_softmax(-1)
    relaxed_B2 = (log_pi_B2 + gumbel_noise(log_pi_B2.shape)) / GUMBEL
    return functional.cross_entropy(relaxed_B2, target_B) + SPARSITY * log_pi_B2[:, 1].exp().mean()


def gate_logits(gate: Gate, inputs: GateInputs, block: int) -> np.ndarray:
    """Logit of merging every pair, block by block."""
    with torch.inference_mode():
        rows = np.arange(len(inputs))
        parts = [gate(inputs.rows(rows[start : start + block])) for start in range(0, len(rows), block)]
        logits_N2 = torch.cat(parts).double().numpy()
    return logits_N2[:, 1] - logits_N2[:, 0]


def gumbel_noise(shape: torch.Size) -> Tensor:
    """Gumbel(0, 1) noise from torch's global generator, which checkpoints save: a resumed run draws the same noise."""
    # An exponential draw is distributed as -log(uniform), and never so close to 0 that its logarithm is infinite.
    return -torch.empty(shape).exponential_().clamp_min(1e-30).log()


class GateInputs:
    """The gate's input for each pair. Frequency and cosine are standardised: their raw values vary too little."""

    def __init__(self, pairs: Candidates, profiles_VD: np.ndarray) -> None:
        numbers_N2 = np.stack([pairs.frequency, pairs.cosine], axis=1)
        spread_2 = numbers_N2.std(0)
        numbers_N2 = (numbers_N2 - numbers_N2.mean(0)) / np.where(spread_2 > 0, spread_2, 1.0)
        self.numbers = torch.as_tensor(numbers_N2.astype(np.float32))
        self.profiles = torch.as_tensor(profiles_VD.astype(np.float32))
        self.left, self.right = torch.as_tensor(pairs.left), torch.as_tensor(pairs.right)
        self.width = 2 * profiles_VD.shape[1] + 2

    def __len__(self) -> int:
        return len(self.left)

    def rows(self, rows: np.ndarray) -> Tensor:
        own = torch.as_tensor(rows)
        return torch.cat([self.profiles[self.left[own]], self.profiles[self.right[own]], self.numbers[own]], dim=1)
