"""Initial capsules from the data, depth by depth: the paper leaves the start open.

With random poses nearly all routing weights stay near 1/K, while reconstruction leaks through W r. Here the poses are
the principal axes of the residuals and a capsule's bias is a centre of spherical k-means; the temperature is set by
bisection to a mean winner mass; fixed outputs, or the lift of input-dependent ones, are a ridge regression of the
residuals on what routing mixes.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from capsid.base.randomness import child_seed
from capsid.tokenize.capsules.algorithm import Step, agree, algorithm_one, squash_scale
from capsid.tokenize.capsules.capsules import CapsuleNetwork, Capsules
from capsid.tokenize.capsules.settings import CapsuleSettings
from capsid.tokenize.capsules.votes import norm
from capsid.tokenize.kmeans import faiss_kmeans

# Size of a vote's two parts, W r and b, where the squash sees it; directions alone need no gain.
POSE_GAIN, BIAS_GAIN = 1.5, 1.5
NOISE = 0.1
RIDGE = 1e-2
CALIBRATION_ROWS = 1024
# Bisection steps for the temperature, on a log scale: the last interval is a third of a percent wide.
HALVINGS = 12
# Restarts of k-means, as many as in residual k-means.
RESTARTS = 3
# Rows at a time: bounds the memory that a large sample takes.
CHUNK = 1024
KAPPAS = (1e-2, 1e4)


@torch.no_grad()
def start_from_data(network: CapsuleNetwork, x_NI: Tensor, settings: CapsuleSettings, seed: int) -> None:
    """Initialise every depth from a sample of the items, each on the residuals of the one before."""
    rng = torch.Generator().manual_seed(child_seed(seed, "capsules", "start"))
    if network.project is not None:
        axes = principal_axes(x_NI / norm(x_NI)[:, None], network.project.linear.shape[0])
        network.project.linear.copy_(axes)
        network.project.back.copy_(axes.T)
    hard_ND = network.enter(x_NI)
    number = iter(range(len(network.depths)))

    def begin(capsules: Capsules, r_ND: Tensor) -> Step:
        nonlocal hard_ND
        depth = next(number)
        place(capsules, r_ND, child_seed(seed, "capsules", depth), rng)
        calibrate(capsules, r_ND, settings.masses[depth])
        step = fit_outputs(capsules, r_ND)
        capsules.centres.copy_(class_means(hard_ND, step.code_B, unused_centres(capsules)))
        hard_ND = hard_ND - capsules.centres[step.code_B]
        return step

    for _ in algorithm_one(network.depths, hard_ND, _never, begin):
        pass


@torch.no_grad()
def calibrate_all(network: CapsuleNetwork, x_NI: Tensor, settings: CapsuleSettings) -> None:
    """Set the temperatures of capsules that start at random, depth by depth; nothing else changes."""
    masses = iter(settings.masses)

    def begin(capsules: Capsules, r_ND: Tensor) -> Step:
        calibrate(capsules, r_ND, next(masses))
        return _routed(capsules, r_ND)[0]

    for _ in algorithm_one(network.depths, network.enter(x_NI), _never, begin):
        pass


def calibrate(capsules: Capsules, r_ND: Tensor, mass: float) -> None:
    """The temperature at which the winners' mean routing weight on these residuals is `mass`, by bisection."""
    if not capsules.form.unit_votes:  # Eq. 5 has no temperature.
        return
    stride = max(1, len(r_ND) // CALIBRATION_ROWS)
    votes = capsules.votes(r_ND[::stride][:CALIBRATION_ROWS])
    low, high = KAPPAS
    for _ in range(HALVINGS):
        kappa = (low * high) ** 0.5
        c_BK, _o = agree(votes, len(capsules), capsules.form, kappa, consensus=False)
        low, high = (kappa, high) if float(c_BK.max(1).values.mean()) < mass else (low, kappa)
    capsules.set_kappa((low * high) ** 0.5)


def fit_outputs(capsules: Capsules, r_ND: Tensor) -> Step:
    """Fit the fixed outputs, or the lift if there is one, by ridge; the step that follows from them."""
    step, mixed_NM = _routed(capsules, r_ND)
    if capsules.outputs is not None:
        capsules.outputs.copy_(_ridge(mixed_NM, r_ND, capsules.outputs))
        z_ND = capsules.step * (mixed_NM @ capsules.outputs)
    else:
        if capsules.lift is not None:
            capsules.lift.copy_(_ridge(mixed_NM, r_ND, capsules.lift.T).T)
        z_ND = capsules.step * capsules.decoded(mixed_NM)
    return Step(step.weights_BK, step.code_B, step.mass_B, None, z_ND, r_ND - z_ND)


def place(capsules: Capsules, r_ND: Tensor, seed: int, rng: torch.Generator) -> None:
    """Poses from the principal axes of the residuals, biases from clusters of their directions."""
    seen_ND = capsules.seen(r_ND)
    axes_CD = principal_axes(seen_ND, capsules.poses.shared().shape[0])
    directions_NC = seen_ND @ axes_CD.T
    bias_KC = torch.as_tensor(_spherical_kmeans(directions_NC.numpy(), len(capsules), seed))
    # With equal weights, the first consensus must be the item's own direction, or capsules near the mean win all items.
    bias_KC = bias_KC - bias_KC.mean(0)
    if not capsules.form.fixed_outputs:
        axes_CD = POSE_GAIN * axes_CD / norm(directions_NC).mean()
        bias_KC = BIAS_GAIN * bias_KC
    capsules.poses.start(axes_CD, bias_KC, NOISE, rng)


def principal_axes(x_ND: Tensor, count: int) -> Tensor:
    """The first principal axes about the origin, as rows. Shape: (count, d)."""
    width = x_ND.shape[1]
    vectors = torch.linalg.eigh(x_ND.T @ x_ND).eigenvectors.T.flip(0)
    # More axes than the data has dimensions: the rest are zero.
    return torch.cat([vectors[:count], x_ND.new_zeros(max(0, count - width), width)])


def class_means(values_ND: Tensor, codes_N: Tensor, default_KD: Tensor) -> Tensor:
    """Mean of the values that carry each code; the default where none does. Shape: (K, d)."""
    counts_K1 = torch.bincount(codes_N, minlength=len(default_KD))[:, None]
    sums_KD = torch.zeros_like(default_KD).index_add_(0, codes_N, values_ND)
    return torch.where(counts_K1 > 0, sums_KD / counts_K1.clamp_min(1), default_KD)


def unused_centres(capsules: Capsules) -> Tensor:
    """What the centre of a token without items is. Shape: (K, d)."""
    return capsules.centres if capsules.outputs is None else capsules.outputs


def _never(_depth: int, rows: Tensor, _step: Step) -> Tensor:
    return torch.zeros(len(rows), dtype=torch.bool)


def _routed(capsules: Capsules, r_ND: Tensor) -> tuple[Step, Tensor]:
    """Routing of many rows, and what is regressed on: weights for fixed outputs, else the mixture of squashed votes."""
    weights, mixed = [], []
    for r_BD in r_ND.split(CHUNK):
        votes = capsules.votes(r_BD)
        c_BK, _o = agree(votes, len(capsules), capsules.form, capsules.kappa, consensus=False)
        # A hard winner subtracts only its own output, so fit each output to its own items.
        chosen_BK = nn.functional.one_hot(c_BK.argmax(1), len(capsules)).float() if capsules.hard_winner else c_BK
        weights.append(c_BK)
        own = capsules.outputs is None
        mixed.append(votes.mix(chosen_BK * squash_scale(votes.norms())) if own else chosen_BK)
    c_NK, mixed_NM = torch.cat(weights), torch.cat(mixed)
    mass_N, code_N = c_NK.max(1)
    z_ND = capsules.decoded(mixed_NM) if capsules.outputs is None else mixed_NM @ capsules.outputs
    return Step(c_NK, code_N, mass_N, None, z_ND, r_ND - z_ND), mixed_NM


def _ridge(inputs_NK: Tensor, targets_ND: Tensor, towards_KD: Tensor) -> Tensor:
    """Least squares, shrunk towards the present values where the inputs carry little information. Shape: (K, d)."""
    gram_KK = inputs_NK.T @ inputs_NK
    ridge = RIDGE * gram_KK.diagonal().mean().clamp_min(1e-12)
    eye_KK = torch.eye(len(gram_KK))
    right_KD = inputs_NK.T @ targets_ND + ridge * towards_KD
    return torch.linalg.solve(gram_KK + ridge * eye_KK, right_KD)


def _spherical_kmeans(vectors_NC: np.ndarray, k: int, seed: int) -> np.ndarray:
    """Unit centres; with fewer vectors than centres, vectors are repeated with small rotations. Shape: (k, C)."""
    vectors_NC = np.ascontiguousarray(vectors_NC, dtype=np.float32)
    rng = np.random.default_rng(seed)
    if len(vectors_NC) <= k:
        rows = np.arange(k) % len(vectors_NC)
        centres_KC = vectors_NC[rows] + np.where(np.arange(k)[:, None] < len(vectors_NC), 0, 0.3) * rng.normal(
            size=(k, vectors_NC.shape[1])
        )
    else:
        centres_KC = faiss_kmeans(vectors_NC, k, 20, seed, nredo=RESTARTS, spherical=True).astype(np.float64)
    norms_K1 = np.linalg.norm(centres_KC, axis=1, keepdims=True)
    return (centres_KC / np.maximum(norms_K1, 1e-6)).astype(np.float32)
