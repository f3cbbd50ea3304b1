"""The paper's Algorithm 1 (CapsID, arXiv 2605.05096), one item at a time, in loops and float64.

The slow twin of `algorithm.py`: tests compare the two. Comments give the paper's lines. The shared prefixes are a plain
set. Knows no batch, no torch and no training.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from capsid.tokenize.capsules.settings import CapsuleSettings, Form


@dataclass(frozen=True, eq=False)
class Capsules:
    """The capsules of one depth. Outputs are fixed, or input-dependent and lifted to the items' width (or neither)."""

    pose_KCD: np.ndarray
    bias_KC: np.ndarray
    kappa: float = 1.0
    step: float = 1.0
    outputs_KD: np.ndarray | None = None
    lift_DC: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Step:
    """One depth: weights c_k, consensus o, token s, confidence q, outputs o_k, their mixture z, and the residual."""

    weights_K: np.ndarray
    consensus_C: np.ndarray
    token: int
    confidence: float
    outputs_KD: np.ndarray
    z_D: np.ndarray
    r_D: np.ndarray


@dataclass(frozen=True, eq=False)
class Answer:
    """The depths up to where the id ends, and why it ends there."""

    steps: list[Step]
    cause: str

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(step.token for step in self.steps)


def algorithm_one(
    x_D: np.ndarray, depths: list[Capsules], how: CapsuleSettings, shared: Collection[tuple[int, ...]] = ()
) -> Answer:
    """The id of one item; `depths` has the L_max depths. Prefixes in `shared` cannot end an id."""
    r_D = unit(x_D.astype(np.float64))  # 1
    steps: list[Step] = []
    waited = False
    for capsules in depths:  # 2
        step = one_depth(r_D, capsules, how)
        steps.append(step)
        r_D = step.r_D
        sure, small = step.confidence >= how.confidence, np.linalg.norm(r_D) <= how.residual  # 11
        if sure or small:
            if tuple(s.token for s in steps) not in shared:
                return Answer(steps, "prefix" if waited else "confidence" if sure else "residual")  # 12
            waited = True
    return Answer(steps, "cap")


def one_depth(r_D: np.ndarray, capsules: Capsules, how: CapsuleSettings) -> Step:
    """Lines 3 to 10."""
    form = how.form
    seen_D = unit(r_D) if form.on_direction else r_D
    votes = [w_CD @ seen_D + b_C for w_CD, b_C in zip(capsules.pose_KCD, capsules.bias_KC)]  # 3
    c_K, o_C = routing(votes, capsules.kappa, form)  # 4 to 8
    s = int(np.argmax(c_K))  # 9
    q = c_K[s] * np.linalg.norm(o_C)
    o_KD = np.stack([output(u_C, k, capsules) for k, u_C in enumerate(votes)])  # 10
    z_D = o_KD[s] if how.winner == "hard" else sum(c * o_D for c, o_D in zip(c_K, o_KD))
    z_D = capsules.step * z_D
    return Step(c_K, o_C, s, float(q), o_KD, z_D, r_D - z_D)


def routing(votes: list[np.ndarray], kappa: float, form: Form) -> tuple[np.ndarray, np.ndarray]:
    """Lines 4 to 8: the weights after the form's number of agreements, and their consensus."""
    a_K = np.zeros(len(votes))  # 4
    for agreement in range(form.agreements + 1):  # 5
        c_K = np.exp(a_K - a_K.max()) / np.exp(a_K - a_K.max()).sum()  # 6
        v_C = sum(c * u_C for c, u_C in zip(c_K, votes))
        o_C = squash(v_C)  # 7
        if agreement < form.agreements:
            seen_C = unit(o_C) if form.unit_consensus else o_C
            a_K = a_K + [kappa * ((unit(u_C) if form.unit_votes else u_C) @ seen_C) for u_C in votes]
    return c_K, o_C


def output(u_C: np.ndarray, k: int, capsules: Capsules) -> np.ndarray:
    """o_k in item space."""
    if capsules.outputs_KD is not None:
        return capsules.outputs_KD[k]
    return squash(u_C) if capsules.lift_DC is None else capsules.lift_DC @ squash(u_C)


def squash(z: np.ndarray) -> np.ndarray:
    """|z|^2 / (0.5 + |z|^2) along z (CapsID, section 3.1)."""
    square = z @ z
    return square / (0.5 + square) * unit(z)


def unit(z: np.ndarray) -> np.ndarray:
    """The direction of a vector; of nothing, nothing."""
    return z / np.linalg.norm(z) if np.any(z) else z
