"""Numbers about capsule routing: why ids end, how confident the winners are, how fast routing converges, and drift.

Also what capsules mean: their most confident items, the words of these items' titles, and items with two facets.
Traces, quantiles, codes and titles in, numbers, rows and words out. Torch is loaded only to route again with fewer
rounds. Knows no file, no title and no item id.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from capsid.errors import ArtifactError, ConfigError
from capsid.ids.order import column
from capsid.ragged import Ragged
from capsid.tokenize.base import Tracing

if TYPE_CHECKING:
    from capsid.tokenize.base import Trace
    from capsid.tokenize.capsules.algorithm import Step
    from capsid.tokenize.capsules.capsules import CapsuleNetwork, Capsules
    from capsid.tokenize.capsules.settings import StopRules


# Routing again for every number of rounds is slower than encoding, so a sample is used.
CONVERGENCE_ITEMS = 20_000
LARGE, FEWEST = 0.2, 30
# The KS distance of n samples from the same distribution exceeds this / sqrt(n) with probability 0.01.
CHANCE = 1.63
SHOWN = (5, 25, 50, 75, 95)
NEAREST, WORDS = 3, 5
# How many titles tell how frequent a word is, and how many items of a capsule are routed again and read.
BACKGROUND, MEMBERS = 20_000, 500
# Two capsules with less joint weight than this do not characterise an item.
MOST = 0.5
# A shared word is this many times as frequent in a capsule's titles as in the catalogue, and in several titles.
LIFT, TITLES = 1.5, 2
WORD = re.compile(r"[^\W\d_]{2,}")
# Words that say nothing about an item: grammar, and units of measure.
_PLAIN = (
    "an and are as at be by can for from has have he her his how if in into is it its me my new no not of off on one or"
    " our out she so that the their them they this to up us was we were what when who will with you your"
    " oz ounce ounces fl floz ml lb lbs kg ct pcs pc inch inches cm mm qty vol de la le el les un et"
)
STOP_WORDS = frozenset(_PLAIN.split())


@runtime_checkable
class Routing(Tracing, Protocol):
    """A fitted tokenizer that routes by agreement and decides where ids end."""

    max_sharing: int
    network_: CapsuleNetwork
    reference_: np.ndarray

    @property
    def rules(self) -> StopRules:
        """When ids end."""


@dataclass(frozen=True)
class RoutingConvergence:
    """Routing with fewer rounds, `rounds[i]` at each depth; all earlier depths keep their full rounds.

    `winner_mass[i]` and `same_token[i]` go by depth, over the ids of a sample of `items` that reach it.
    """

    items: int
    rounds: tuple[int, ...]
    winner_mass: tuple[tuple[float, ...], ...]
    same_token: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class RoutingQuality:
    """Numbers that only a routing tokenizer has. Tuples go by depth, up to the longest id.

    Masses, confidences and growing norms are means over the ids that reach a depth; `soft` and `hard` are mean norms in
    routing space, where every item has norm 1, over all items; a shorter id counts with its last depth.
    """

    stop_causes: dict[str, float]
    winner_mass: tuple[float, ...]
    confidences: tuple[float, ...]
    norm_increasing_share: tuple[float, ...]
    soft: tuple[float, ...]
    hard: tuple[float, ...]
    routing_convergence: RoutingConvergence


def routing_quality(tokenizer: Routing, vectors_NI: np.ndarray) -> RoutingQuality:
    """The whole report, for the vectors that the ids were made from."""
    seen = tokenizer.trace_vectors(vectors_NI)
    stops = tokenizer.stop(seen)
    return RoutingQuality(
        stop_causes=stops.shares(with_prefix=tokenizer.max_sharing > 0),
        winner_mass=mean_of_reaching(seen.mass, stops.lengths),
        confidences=mean_of_reaching(seen.confidence, stops.lengths),
        norm_increasing_share=mean_of_reaching(seen.grew, stops.lengths),
        soft=mean_at_end(seen.soft, stops.lengths),
        hard=mean_at_end(seen.hard, stops.lengths),
        routing_convergence=routing_convergence(tokenizer.network_, vectors_NI, stops.lengths),
    )


def spread(count: int, most: int | None) -> np.ndarray:
    """All rows, or `most` of them at equal distances if there are more."""
    rows = count if most is None else min(most, count)
    return np.unique(np.linspace(0, count - 1, rows).astype(np.int64)) if rows else np.zeros(0, dtype=np.int64)


def mean_of_reaching(values_NL: np.ndarray, lengths_N: np.ndarray) -> tuple[float, ...]:
    """Mean by depth over the ids that reach the depth."""
    return tuple(float(values_NL[lengths_N > d, d].mean(dtype=np.float64)) for d in range(int(lengths_N.max())))


def mean_at_end(values_NL: np.ndarray, lengths_N: np.ndarray) -> tuple[float, ...]:
    """Mean by depth over all items, each at that depth or at its own end, whichever comes first."""
    rows = np.arange(len(lengths_N))
    ends = (np.minimum(d, lengths_N - 1) for d in range(int(lengths_N.max())))
    return tuple(float(values_NL[rows, end].mean(dtype=np.float64)) for end in ends)


def routing_convergence(
    network: CapsuleNetwork, vectors_NI: np.ndarray, lengths_N: np.ndarray, *, most: int = CONVERGENCE_ITEMS
) -> RoutingConvergence:
    """Winner mass and final tokens after 1, 2, ... rounds; on an evenly spaced sample if there are many items."""
    from capsid.tokenize.capsules.catalogue import BLOCK

    rows = spread(len(vectors_NI), most)
    rounds = range(1, network.rounds + 1)
    depths = int(lengths_N[rows].max())
    sums_TL2 = np.zeros((len(rounds), depths, 2))
    for start in range(0, len(rows), BLOCK):
        part = rows[start : start + BLOCK]
        sums_TL2 += _fewer_rounds(
            network, np.array(vectors_NI[part], dtype=np.float32), lengths_N[part], rounds, depths
        )
    reaching_L = np.array([(lengths_N[rows] > d).sum() for d in range(depths)])
    mass_TL, same_TL = np.moveaxis(sums_TL2 / reaching_L[:, None], 2, 0).tolist()
    return RoutingConvergence(len(rows), tuple(rounds), tuple(map(tuple, mass_TL)), tuple(map(tuple, same_TL)))


def _fewer_rounds(
    network: CapsuleNetwork, x_BI: np.ndarray, lengths_B: np.ndarray, rounds: range, depths: int
) -> np.ndarray:
    """Sums of winner mass and of final tokens over a block, by rounds and depth. Shape: (rounds, depths, 2)."""
    import torch

    from capsid.tokenize.capsules.algorithm import agree, algorithm_one, one_depth

    out_TL2 = np.zeros((len(rounds), depths, 2))
    number = iter(range(depths))

    def compared(capsules: Capsules, r_BD: torch.Tensor) -> Step:
        done, depth = one_depth(capsules, r_BD), next(number)
        reaches_B = torch.as_tensor(lengths_B > depth)
        votes = capsules.votes(r_BD)
        for i, t in enumerate(rounds):
            fewer = dataclasses.replace(capsules.form, agreements=capsules.form.agreements - rounds[-1] + t)
            mass_B, code_B = agree(votes, len(capsules), fewer, capsules.kappa, consensus=False)[0].max(1)
            out_TL2[i, depth, 0] = float(mass_B[reaches_B].double().sum())
            out_TL2[i, depth, 1] = float((code_B == done.code_B)[reaches_B].sum())
        return done

    with torch.inference_mode():
        unit_BD = network.enter(torch.as_tensor(x_BI))
        for _ in algorithm_one(network.depths[:depths], unit_BD, lambda _d, rows, _s: rows < 0, compared):
            pass
    return out_TL2


@dataclass(frozen=True)
class Shift:
    """One number at one depth: fitted items against new ones. `ks` is the Kolmogorov-Smirnov distance."""

    name: str
    depth: int
    ks: float
    fitted: dict[str, float]
    new: dict[str, float]

    @property
    def median_shift(self) -> float:
        """Median of the new items minus that of the fitted ones."""
        return self.new["50%"] - self.fitted["50%"]

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "median_shift": self.median_shift}


@dataclass(frozen=True)
class Drift:
    """New items compared with those of the fit, by depth, as if no id stopped early."""

    items: int
    shifts: tuple[Shift, ...]

    @property
    def worst(self) -> Shift:
        """The number that is furthest from the fit."""
        return max(self.shifts, key=lambda s: s.ks)

    @property
    def limit(self) -> float:
        """A distance above this is unlikely to be chance for so few items."""
        return max(LARGE, CHANCE / max(self.items, 1) ** 0.5)

    @property
    def large(self) -> bool:
        """Whether the new items differ from those of the fit."""
        return self.items >= FEWEST and self.worst.ks > self.limit

    def sentence(self) -> str:
        """One sentence for people."""
        if not self.items:
            return "no new items"
        w = self.worst
        about = (
            f"{w.name} at depth {w.depth}, KS distance {w.ks:.2f}, "
            f"median {w.new['50%']:.3f} against {w.fitted['50%']:.3f} at fit"
        )
        if self.items < FEWEST:
            return f"too few new items ({self.items}) to detect drift (furthest from the fit: {about})"
        if not self.large:
            return f"no drift in {self.items:,} new items (furthest from the fit: {about})"
        return f"DRIFT: the {self.items:,} new items differ from those of the fit ({about}): consider refitting"

    def to_dict(self) -> dict[str, Any]:
        shifts = [s.to_dict() for s in self.shifts]
        return {"items": self.items, "large": self.large, "sentence": self.sentence(), "shifts": shifts}


def drift(reference_2LQ: np.ndarray, trace: Trace) -> Drift:
    """New items against quantiles (0 to 100 %) of confidence and hard residual of the fitted ones, by depth."""
    if reference_2LQ.ndim != 3 or reference_2LQ.shape[:2] != (2, trace.codes.shape[1]):
        raise ArtifactError(
            f"stored quantiles of shape {reference_2LQ.shape} do not fit {trace.codes.shape[1]} depths",
            hint="refit the tokenizer",
        )
    if not len(trace):
        return Drift(0, ())
    shifts = [
        _shift(name, depth, reference_2LQ[i, depth], values_NL[:, depth])
        for i, (name, values_NL) in enumerate((("confidence", trace.confidence), ("hard residual", trace.hard)))
        for depth in range(values_NL.shape[1])
    ]
    return Drift(len(trace), tuple(shifts))


def ks_distance(quantiles_Q: np.ndarray, values_N: np.ndarray) -> float:
    """Largest difference of the two distribution functions; evenly spaced quantiles represent a sample."""
    points = np.concatenate([quantiles_Q, values_N])
    known = np.searchsorted(np.sort(quantiles_Q), points, side="right") / len(quantiles_Q)
    new = np.searchsorted(np.sort(values_N), points, side="right") / len(values_N)
    return float(np.abs(known - new).max())


def _shift(name: str, depth: int, quantiles_Q: np.ndarray, values_N: np.ndarray) -> Shift:
    share = np.linspace(0, 100, len(quantiles_Q))
    return Shift(
        name=name,
        depth=depth + 1,
        ks=ks_distance(quantiles_Q, values_N),
        fitted={f"{p}%": float(np.interp(p, share, quantiles_Q)) for p in SHOWN},
        new={f"{p}%": float(np.percentile(values_N, p)) for p in SHOWN},
    )


def words_of(title: str) -> frozenset[str]:
    """The words of a title that may say something about an item."""
    return frozenset(WORD.findall(title.lower())) - STOP_WORDS


def informative(
    chosen: Sequence[frozenset[str]], titles_with: Mapping[str, int], titles: int, count: int
) -> tuple[str, ...]:
    """Words that the chosen titles share more than by chance, most informative first.

    `titles_with` says in how many of all `titles` a word occurs. The score is titles * log(lift): how over-represented
    the word is, weighted by how many titles have it.
    """
    scores = {}
    for word, n in Counter(word for words in chosen for word in words).items():
        lift = n * titles / (len(chosen) * titles_with[word]) if titles_with.get(word) else 0.0
        if n >= TITLES and lift >= LIFT:
            scores[word] = n * math.log(lift)
    return tuple(sorted(scores, key=lambda word: (-scores[word], word))[:count])


class TitleWords:
    """Titles, and how frequent their words are: in all titles, or in a sample spread evenly over a large catalogue."""

    def __init__(self, titles: Sequence[str]) -> None:
        self._titles = titles
        known = [words_of(titles[row]) for row in spread(len(titles), BACKGROUND).tolist()]
        self._titles_with, self._known = Counter(word for words in known for word in words), len(known)

    def shared(self, rows: Iterable[int], count: int = WORDS) -> tuple[str, ...]:
        """Words that these titles share more than by chance, most informative first."""
        chosen = [words_of(self._titles[row]) for row in rows if row < len(self._titles)]
        return informative(chosen, self._titles_with, self._known, count)


@dataclass(frozen=True)
class Capsule:
    """A token at a depth (from 0): how many ids have it there, the most confident of them (rows), and their words.

    If many ids have it, a sample of them is looked at.
    """

    depth: int
    code: int
    items: int
    nearest: tuple[int, ...]
    words: tuple[str, ...]


@dataclass(frozen=True)
class TwoFacets:
    """An item whose weight at one depth is split between two capsules."""

    row: int
    codes: tuple[int, int]
    weights: tuple[float, float]


def capsules(
    tokenizer: Routing,
    vectors_NI: np.ndarray,
    codes: Ragged,
    words: TitleWords,
    wanted: Sequence[tuple[int, int]],
    *,
    without: int = -1,
) -> dict[tuple[int, int], Capsule]:
    """The capsules (depth, code) that are asked for; `codes` are the ids.

    `without` is a row that is not used as an example: the inspected item itself.
    """
    columns = {depth: column(codes, depth) for depth, _ in wanted}
    holders = {pair: np.flatnonzero(columns[pair[0]] == pair[1]) for pair in dict.fromkeys(wanted)}
    sizes = {pair: len(members) for pair, members in holders.items()}
    holders = {pair: members[spread(len(members), MEMBERS)] for pair, members in holders.items()}
    rows = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *holders.values()]))
    # Only items with one of these tokens are routed again.
    mass_RL = tokenizer.trace_vectors(np.asarray(vectors_NI[rows])).mass
    out = {}
    for (depth, code), members in holders.items():
        mass_M = mass_RL[np.searchsorted(rows, members), depth]
        firmest = [int(n) for n in members[np.argsort(-mass_M, kind="stable")] if n != without]
        out[depth, code] = Capsule(
            depth, code, sizes[depth, code], tuple(firmest[:NEAREST]), words.shared(members.tolist())
        )
    return out


def two_facets(trace: Trace, lengths_N: np.ndarray, *, depth: int, count: int) -> tuple[TwoFacets, ...]:
    """Items with the largest second weight at a depth (from 0), where the two strongest hold most of the weight."""
    if trace.strongest.shape[2] < 2:
        raise ConfigError("two facets need two capsules at every depth", hint="codebooks of at least 2 codes")
    weights_N2 = trace.strongest_weight[:, depth, :2]
    rows = np.flatnonzero((weights_N2.sum(1) >= MOST) & (lengths_N > depth))
    best = rows[np.argsort(-weights_N2[rows, 1], kind="stable")][:count]
    return tuple(
        TwoFacets(
            row=int(row),
            codes=(int(trace.strongest[row, depth, 0]), int(trace.strongest[row, depth, 1])),
            weights=(float(weights_N2[row, 0]), float(weights_N2[row, 1])),
        )
        for row in best
    )
