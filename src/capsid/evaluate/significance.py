"""Is one method better than another? Paired bootstrap over users and over the seeds of each method.

Per-user values in, a difference with its interval out. Every draw samples users with replacement, the same for both
methods, and seeds with replacement, independently for each method: equal seed numbers do not pair two trainings. With
one seed only users are sampled, and the interval ignores the variance between trainings. With two or three it covers
too little of that variance: n draws of n seeds have (n - 1) / n of it, and a percentile interval has no heavier tails
for few seeds. The interaction of user and seed is counted twice (Owen 2007, "The pigeonhole bootstrap"), which does not
make up for this if seeds differ much. Knows no metric and no method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from capsid.base.randomness import numpy_rng
from capsid.errors import DataError

# Draws made at once: bounds the memory at users x this.
CHUNK = 100


@dataclass(frozen=True)
class Comparison:
    """Mean of each, their difference with its 95 % interval, and the two-sided p-value of no difference.

    No p-value is below `least_p`: that is what so many draws can tell.
    """

    first: float
    second: float
    difference: float
    low: float
    high: float
    p: float
    first_by_seed: tuple[float, ...]
    second_by_seed: tuple[float, ...]
    users: int
    least_p: float

    @property
    def at_floor(self) -> bool:
        """Whether the p-value is as small as it can be, so that only `p < least_p` is known."""
        return self.p <= self.least_p

    @property
    def p_text(self) -> str:
        """The p-value as written: `0.0214`, or `< 0.0002`."""
        return f"< {self.least_p:.4f}" if self.at_floor else f"{self.p:.4f}"

    @property
    def significant(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "significant": self.significant}


def paired_bootstrap(
    first: Sequence[np.ndarray], second: Sequence[np.ndarray], *, draws: int = 10_000, seed: int = 0
) -> Comparison:
    """First minus second. One array of per-user values per seed, all with the same users in the same order."""
    if not len(first) or not len(second):
        raise DataError("nothing to compare", hint="give at least one array of per-user values for each side")
    lengths = {len(values) for values in (*first, *second)}
    if len(lengths) != 1 or 0 in lengths:
        message = f"runs of different users cannot be paired: {sorted(lengths)} values"
        raise DataError(message, hint="compare runs that were evaluated on the same users")
    (users,) = lengths
    first_SU, second_SU = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    means = _resampled_gaps(first_SU, second_SU, draws, numpy_rng(seed, "bootstrap"))
    low, high = np.quantile(means, [0.025, 0.975])
    # Add-one estimate: finitely many draws cannot give a p-value of 0.
    tail = min((means <= 0).sum(), (means >= 0).sum())
    return Comparison(
        first=float(first_SU.mean()),
        second=float(second_SU.mean()),
        difference=float((first_SU.mean(0) - second_SU.mean(0)).mean()),
        low=float(low),
        high=float(high),
        p=float(min(1.0, 2 * (tail + 1) / (draws + 1))),
        first_by_seed=tuple(first_SU.mean(1).tolist()),
        second_by_seed=tuple(second_SU.mean(1).tolist()),
        users=users,
        least_p=2 / (draws + 1),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for being compared together (Holm 1979): the smallest times their number, the next times one
    less, and none below the one before it."""
    order = sorted(range(len(p_values)), key=lambda n: p_values[n])
    out, reached = [0.0] * len(p_values), 0.0
    for place, n in enumerate(order):
        reached = max(reached, min(1.0, (len(p_values) - place) * p_values[n]))
        out[n] = reached
    return out


def per_user(values_C: np.ndarray, users_C: np.ndarray) -> np.ndarray:
    """Values of cases as one value per user, with the same mean: a user with several cases is drawn as a whole."""
    users, of_C = np.unique(users_C, return_inverse=True)
    if len(users) == len(users_C):
        return values_C
    return np.bincount(of_C, weights=values_C) * (len(users) / len(users_C))


def _resampled_gaps(first_SU: np.ndarray, second_SU: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """First minus second for each sample. Samples with the same seeds are drawn together: there are few such sets."""
    weights = [
        rng.multinomial(len(side), np.full(len(side), 1 / len(side)), size=draws) for side in (first_SU, second_SU)
    ]
    sets, times = np.unique(np.hstack(weights), axis=0, return_counts=True)
    means = []
    for weight, count in zip(sets, times):
        ours_S, theirs_S = np.split(weight, [len(first_SU)])
        gaps_U = ours_S @ first_SU / len(first_SU) - theirs_S @ second_SU / len(second_SU)
        means.append(_resampled_means(gaps_U, count, rng))
    return np.concatenate(means)


def _resampled_means(values_U: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Means of samples of users with replacement. It suffices to draw how often each value occurs."""
    levels, counts = np.unique(values_U, return_counts=True)
    out = np.empty(draws)
    for start in range(0, draws, CHUNK):
        drawn = rng.multinomial(len(values_U), counts / len(values_U), size=min(CHUNK, draws - start))
        out[start : start + len(drawn)] = drawn @ levels / len(values_U)
    return out
