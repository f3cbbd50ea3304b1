"""Initial capsules from the data, depth by depth, and the fits that have a closed form.

The paper leaves initialisation open; with random poses nearly all routing weights stay near 1/K. The projection is
the principal axes of the residuals and a capsule's bias is a centre of spherical k-means; the temperature is set by
bisection to a target winner mass, and outputs are the least-squares fit of residuals on routing weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from capsid.base.randomness import child_seed
from capsid.tokenize.capsules.network import CapsuleLayer, CapsuleNetwork
from capsid.tokenize.capsules.routing import route
from capsid.tokenize.capsules.votes import norm, squash_scale

# Initial weight of a capsule's own direction against the item's in its vote.
GAIN = 1.0
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


def start_from_data(network: CapsuleNetwork, x_NI: Tensor, masses: Sequence[float], seed: int) -> None:
    """Initialise every depth from a sample of the items, each on the residuals of the one before."""
    rng = torch.Generator().manual_seed(child_seed(seed, "capsules", "start"))
    with torch.no_grad():
        if network.project is not None:
            axes = principal_axes(x_NI / norm(x_NI)[:, None], network.project.linear.shape[0])
            network.project.linear.copy_(axes)
            network.project.back.copy_(axes.T)
        soft_ND = hard_ND = network.enter(x_NI)
        placed: set[int] = set()
        for number, layer in enumerate(network.depths):
            if id(layer.poses) not in placed:  # Shared poses are set once, by the first depth.
                placed.add(id(layer.poses))
                _place_poses(layer, soft_ND, child_seed(seed, "capsules", number), rng)
            if masses:
                calibrate(layer, soft_ND, masses[number])
            soft_ND, hard_ND = fit_depth(layer, soft_ND, hard_ND)


def calibrate_all(network: CapsuleNetwork, x_NI: Tensor, masses: Sequence[float]) -> None:
    """Set the temperatures of capsules that start at random, depth by depth; nothing else changes."""
    with torch.no_grad():
        soft_ND = network.enter(x_NI)
        for layer, mass in zip(network.depths, masses, strict=True):
            calibrate(layer, soft_ND, mass)
            soft_ND = torch.cat([layer.assign(r_BD, confident=False).soft_BD for r_BD in soft_ND.split(CHUNK)])


def settle(network: CapsuleNetwork, x_NI: Tensor, masses: Sequence[float]) -> None:
    """After training, reset temperatures to the target masses and refit outputs to the new weights, depth by depth."""
    with torch.no_grad():
        soft_ND = hard_ND = network.enter(x_NI)
        for number, layer in enumerate(network.depths):
            if masses:
                calibrate(layer, soft_ND, masses[number])
                soft_ND, hard_ND = fit_depth(layer, soft_ND, hard_ND)
            else:
                soft_ND, hard_ND = _advance(layer, soft_ND, hard_ND)


def calibrate(layer: CapsuleLayer, r_ND: Tensor, mass: float) -> None:
    """The temperature at which the winners' mean routing weight on these residuals is `mass`, by bisection."""
    stride = max(1, len(r_ND) // CALIBRATION_ROWS)
    sample_BD = r_ND[::stride][:CALIBRATION_ROWS]
    votes = layer.votes(sample_BD)
    low, high = KAPPAS
    for _ in range(HALVINGS):
        kappa = (low * high) ** 0.5
        routed = route(votes, layer.capsules, len(sample_BD), layer.rounds, kappa, agreed=False)
        if float(routed.weights_BK.max(1).values.mean()) < mass:
            low = kappa
        else:
            high = kappa
    layer.kappa.fill_((low * high) ** 0.5)


def fit_depth(layer: CapsuleLayer, soft_ND: Tensor, hard_ND: Tensor) -> tuple[Tensor, Tensor]:
    """Fit the outputs, and the lift if there is one, by ridge regression of the residuals on the routed mixtures; then
    the centres. Returns both residuals after the depth."""
    weights_NK, lifted_NC = _regressors(layer, soft_ND)
    layer.outputs.copy_(_ridge(weights_NK, soft_ND, layer.outputs))
    if layer.lift is not None:
        layer.lift.copy_(_ridge(lifted_NC, soft_ND, layer.lift.T).T)
    if float(layer.leak):
        return _advance(layer, soft_ND, hard_ND)
    # If outputs are fixed, these weights determine the depth's result: no need to route again.
    codes_N = weights_NK.argmax(1)
    return soft_ND - layer.step * (weights_NK @ layer.outputs), _centred(layer, codes_N, hard_ND)


def principal_axes(x_ND: Tensor, count: int) -> Tensor:
    """The first principal axes about the origin, as rows. Shape: (count, d)."""
    width = x_ND.shape[1]
    vectors = torch.linalg.eigh(x_ND.T @ x_ND).eigenvectors.T.flip(0)
    # More axes than the data has dimensions: the rest are zero.
    return torch.cat([vectors[:count], x_ND.new_zeros(max(0, count - width), width)])


def _place_poses(layer: CapsuleLayer, r_ND: Tensor, seed: int, rng: torch.Generator) -> None:
    seen_ND = r_ND / norm(r_ND)[:, None] if layer.on_direction else r_ND
    axes_CD = principal_axes(seen_ND, layer.poses.shared().shape[0])  # type: ignore[operator]
    centres_KC = _spherical_kmeans((seen_ND @ axes_CD.T).numpy(), layer.capsules, seed)
    bias_KC = torch.as_tensor(centres_KC)
    # With equal weights, the first consensus must be the item's own direction, or capsules near the mean win all items.
    bias_KC = GAIN * (bias_KC - bias_KC.mean(0))
    layer.poses.start(axes_CD, bias_KC, NOISE, rng)  # type: ignore[operator]


def _advance(layer: CapsuleLayer, soft_ND: Tensor, hard_ND: Tensor) -> tuple[Tensor, Tensor]:
    """Both residuals after a depth; the depth's centres become the mean residuals of their items."""
    codes, softs = [], []
    for start in range(0, len(soft_ND), CHUNK):
        depth = layer(soft_ND[start : start + CHUNK], hard_ND[start : start + CHUNK])
        codes.append(depth.code_B)
        softs.append(depth.soft_BD)
    return torch.cat(softs), _centred(layer, torch.cat(codes), hard_ND)


def _centred(layer: CapsuleLayer, codes_N: Tensor, hard_ND: Tensor) -> Tensor:
    """Set the centres to the mean residuals of their items; returns the new residuals. Shape: (N, d)."""
    layer.centres.copy_(class_means(hard_ND, codes_N, layer.outputs))
    return hard_ND - layer.centres[codes_N]


def class_means(values_ND: Tensor, codes_N: Tensor, default_KD: Tensor) -> Tensor:
    """Mean of the values that carry each code; the default where none does. Shape: (K, d)."""
    counts_K1 = torch.bincount(codes_N, minlength=len(default_KD))[:, None]
    sums_KD = torch.zeros_like(default_KD).index_add_(0, codes_N, values_ND)
    return torch.where(counts_K1 > 0, sums_KD / counts_K1.clamp_min(1), default_KD)


def _regressors(layer: CapsuleLayer, r_ND: Tensor) -> tuple[Tensor, Tensor]:
    weights, mixed = [], []
    for start in range(0, len(r_ND), CHUNK):
        r_BD = r_ND[start : start + CHUNK]
        votes = layer.votes(r_BD)
        weights_BK = route(votes, layer.capsules, len(r_BD), layer.rounds, layer.kappa, agreed=False).weights_BK
        # A hard winner subtracts only its own output, so fit each output to its own items.
        weights.append(
            nn.functional.one_hot(weights_BK.argmax(1), layer.capsules).float() if layer.hard_winner else weights_BK
        )
        if layer.lift is not None:
            scale_B1 = norm(r_BD)[:, None] if layer.on_direction else 1.0
            mixed.append(scale_B1 * votes.mix(weights_BK * squash_scale(votes.norms())))
    return torch.cat(weights), torch.cat(mixed) if mixed else torch.zeros(0)


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
        import faiss

        means = faiss.Kmeans(
            vectors_NC.shape[1],
            k,
            niter=20,
            nredo=RESTARTS,
            seed=seed % (2**31),
            spherical=True,
            min_points_per_centroid=1,
        )
        means.train(vectors_NC)
        centres_KC = np.asarray(means.centroids, dtype=np.float64)
    norms_K1 = np.linalg.norm(centres_KC, axis=1, keepdims=True)
    return (centres_KC / np.maximum(norms_K1, 1e-6)).astype(np.float32)
