"""The paper's Algorithm 1, one item at a time, in loops and float64: the slow twin of the capsule network.

The switches are the tokenizer's settings, the shared prefixes a plain set. Knows no batch, no torch and no training.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from capsid.tokenize.capsules.tokenizer import CapsuleTokenizer


@dataclass(frozen=True, eq=False)
class Capsules:
    """The capsules of one depth. `lift_DC` is None where votes live in item space."""

    pose_KCD: np.ndarray
    bias_KC: np.ndarray
    outputs_KD: np.ndarray
    centres_KD: np.ndarray
    lift_DC: np.ndarray | None
    kappa: float
    step: float
    leak: float


@dataclass(frozen=True, eq=False)
class Step:
    """What one depth did: weights c_k, consensus o, token s, confidence q, outputs o_k, z, and what is left."""

    weights_K: np.ndarray
    consensus_C: np.ndarray
    token: int
    confidence: float
    outputs_KD: np.ndarray
    z_D: np.ndarray
    soft_D: np.ndarray
    hard_D: np.ndarray


@dataclass(frozen=True, eq=False)
class Answer:
    """The depths up to where the id ends, and why it ends there."""

    steps: list[Step]
    cause: str

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(step.token for step in self.steps)


def algorithm_one(
    x_D: np.ndarray, depths: list[Capsules], how: CapsuleTokenizer, shared: Collection[tuple[int, ...]] = ()
) -> Answer:
    """Algorithm 1, line by line. `depths` has the L_max depths."""
    x_D = x_D.astype(np.float64)
    soft_D = hard_D = x_D / np.linalg.norm(x_D)
    steps: list[Step] = []
    blocked = False
    for depth, capsules in enumerate(depths, start=1):
        step = one_depth(soft_D, hard_D, capsules, how)
        steps.append(step)
        soft_D, hard_D = step.soft_D, step.hard_D
        left = np.linalg.norm(hard_D if how.residual_of == "hard" else soft_D)
        rule = "confidence" if step.confidence >= how.confidence else "residual" if left <= how.residual else None
        if rule is not None and depth >= how.shortest:
            if tuple(s.token for s in steps) not in shared:
                return Answer(steps, "prefix" if blocked else rule)
            blocked = True
    return Answer(steps, "cap")


def one_depth(r_D: np.ndarray, hard_D: np.ndarray, capsules: Capsules, how: CapsuleTokenizer) -> Step:
    """Lines 3 to 11: votes, routing, token and confidence, residual."""
    length = np.linalg.norm(r_D)
    seen_D = unit(r_D) if how.on_direction else r_D
    votes = [w_CD @ seen_D + b_C for w_CD, b_C in zip(capsules.pose_KCD, capsules.bias_KC)]
    c_K, o_C = routing(votes, capsules.kappa, how)
    s = int(np.argmax(c_K))
    q = c_K[s] * np.linalg.norm(o_C)
    gain = length if how.on_direction else 1.0
    o_KD = np.stack([output(u_C, k, capsules, gain) for k, u_C in enumerate(votes)])
    if how.winner == "hard":
        z_D = o_KD[s]
    else:
        z_D = sum(c * o_D for c, o_D in zip(c_K, o_KD))
    return Step(c_K, o_C, s, float(q), o_KD, z_D, r_D - z_D, hard_D - capsules.centres_KD[s])


def routing(votes: list[np.ndarray], kappa: float, how: CapsuleTokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Lines 4 to 8: weights and consensus of the round that is read, the last one or one more (`post`)."""
    a_K = np.zeros(len(votes))
    for _ in range(how.rounds + (how.readout == "post")):
        c_K = np.exp(a_K - a_K.max()) / np.exp(a_K - a_K.max()).sum()
        v_C = sum(c * u_C for c, u_C in zip(c_K, votes))
        o_C = squash(v_C)
        if how.agreement == "cosine":
            a_K = a_K + [kappa * (unit(u_C) @ unit(o_C)) for u_C in votes]
        else:
            a_K = a_K + [kappa * (u_C @ o_C) for u_C in votes]
    return c_K, o_C


def output(u_C: np.ndarray, k: int, capsules: Capsules, gain: float) -> np.ndarray:
    """o_k in item space: a fixed vector (leak 0), the lifted squashed vote (leak 1, the paper's), or between."""
    fixed_D = capsules.outputs_KD[k]
    if capsules.leak == 0:
        return capsules.step * fixed_D
    own_D = squash(u_C) if capsules.lift_DC is None else capsules.lift_DC @ squash(u_C)
    return capsules.step * ((1 - capsules.leak) * fixed_D + capsules.leak * gain * own_D)


def squash(z: np.ndarray) -> np.ndarray:
    """|z|^2 / (0.5 + |z|^2) along z (CapsID, section 3.1)."""
    square = z @ z
    return square / (0.5 + square) * unit(z)


def unit(z: np.ndarray) -> np.ndarray:
    """The direction of a vector; of nothing, nothing."""
    return z / np.linalg.norm(z) if np.any(z) else z
