"""The CapsID tokenizer: item vectors to ids of varying length by capsule routing (paper, Algorithm 1).

Every variant of the paper is a setting here: literal equations, a hard winner, other numbers of rounds, fixed length.
The network itself, and torch with it, is loaded when it is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from capsid.data.item_table import ItemTable
from capsid.encode.base import check_vectors, require_items
from capsid.errors import ConfigError, NotFittedError
from capsid.progress import Progress, silent
from capsid.ragged import Ragged
from capsid.tokenize.stopping import Crowded, StopRules, Stops, stop
from capsid.train.options import Training

if TYPE_CHECKING:
    from torch import nn

    from capsid.tokenize.capsules.encoding import Trace
    from capsid.tokenize.capsules.network import CapsuleNetwork

CHOICES = {
    "readout": ("post", "pre"),
    "agreement": ("cosine", "dot"),
    "winner": ("soft", "hard"),
    "start": ("data", "random"),
    "residual_of": ("hard", "soft"),
    "rivals": ("strongest", "mean", "sum"),
}


def stage_one_training() -> Training:
    """Enough steps for a catalogue of ten thousand items; no averaging, since capsules may be re-seeded."""
    return Training(
        steps=300,
        batch_size=256,
        learning_rate=1e-3,
        weight_decay=1e-5,
        ema=0.0,
        validate_every=100,
        patience=5,
    )


@dataclass(kw_only=True)
class CapsuleTokenizer:
    """Fields in the order of Algorithm 1: routing, what is subtracted, when to stop, how to learn.

    `dim` 0: votes are as wide as the vectors; `rank` 0: full poses; `projection` 0: no trained projection; an empty
    `winner_mass`: no temperature; `crowd` 0: prefixes are not counted, which is the paper's rule for stopping.
    Fixed length L: L codebooks, confidence 1, residual 0.
    """

    kind: ClassVar[str] = "capsules"
    codebooks: tuple[int, ...] = (256, 256, 256, 256)
    dim: int = 0
    rank: int = 4
    rounds: int = 3
    readout: str = "post"
    agreement: str = "cosine"
    on_direction: bool = True
    shared_poses: bool = False
    projection: int = 0
    winner_mass: tuple[float, ...] = (0.45, 0.65, 0.82, 0.88, 0.92, 0.95)
    winner: str = "soft"
    leak: tuple[float, float] = (0.0, 0.0)
    confidence: float = 0.0
    residual: float = 0.0
    residual_of: str = "hard"
    crowd: int = 1
    shortest: int = 1
    start: str = "data"
    soft_weight: float = 1.0
    hard_weight: float = 1.0
    spread_weight: float = 0.1
    rivals: str = "strongest"
    margin: tuple[float, float] = (0.2, 0.9)
    length_weight: float = 0.05
    tie_weight: float = 0.25
    balance_weight: float = 0.2
    reseed: bool = True
    training: Training = field(default_factory=stage_one_training)
    sample: int = 65_536
    block: str = "item"

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(f"tokenizer.{name} is {getattr(self, name)!r}", hint=f"one of {', '.join(allowed)}")
        if not self.codebooks or min(self.codebooks) < 1:
            raise ConfigError(f"tokenizer.codebooks is {self.codebooks}", hint="give one positive size a depth")
        for name, least in {"dim": 0, "rank": 0, "rounds": 1, "projection": 0, "crowd": 0, "shortest": 1}.items():
            if getattr(self, name) < least:
                raise ConfigError(f"tokenizer.{name} is {getattr(self, name)}, but must be at least {least}")
        if any(not 0 < m < 1 for m in self.winner_mass):
            raise ConfigError(f"tokenizer.winner_mass is {self.winner_mass}", hint="shares between 0 and 1, or none")
        if self.shared_poses and len(set(self.codebooks)) > 1:
            raise ConfigError("shared poses need codebooks of one size", hint="set tokenizer.shared_poses=false")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Codebook size of every depth."""
        self._fitted()
        return self.codebooks

    @property
    def masses(self) -> tuple[float, ...]:
        """Target winner mass of every depth: the last one given holds for all deeper ones. None: no calibration."""
        given = self.winner_mass
        return tuple(given[min(d, len(given) - 1)] for d in range(len(self.codebooks))) if given else ()

    @property
    def rules(self) -> StopRules:
        """When an id ends."""
        return StopRules(self.confidence, self.residual, self.crowd, self.shortest)

    @property
    def stops(self) -> bool:
        """Whether any rule can end an id before the cap: a confidence is below 1 and a norm above 0."""
        return self.confidence < 1 or self.residual > 0

    def fit(
        self,
        table: ItemTable,
        *,
        seed: int = 0,
        progress: Progress = silent,
        checkpoint: Path | None = None,
    ) -> CapsuleTokenizer:
        """Stage 1 on the table's vectors, which may be a mapped file larger than memory."""
        from capsid.tokenize.capsules.stage_one import fit_stage_one

        require_items(table)
        vectors = table.vectors(self.block)
        check_vectors(vectors, table.items)
        fitted = fit_stage_one(self, vectors, seed=seed, checkpoint=checkpoint, progress=progress)
        self.network_: CapsuleNetwork = fitted.network
        self.crowded_: Crowded = fitted.crowded
        self.reference_: np.ndarray = fitted.reference
        return self

    def encode(self, table: ItemTable) -> Ragged:
        """Codes of every item, each cut where its id ends."""
        from capsid.tokenize.capsules.encoding import traces

        vectors = self._checked(table)
        # Block by block: of a large catalogue only the codes are held.
        parts = [Ragged.from_dense(t.codes, self.stop(t).lengths) for t in traces(self._fitted(), vectors)]
        return Ragged.join(parts)

    def begin_adapting(self, rank: int, *, seed: int = 0) -> nn.ModuleList:
        """Low-rank adapters on the routing of every depth, for stage 2 to train; nothing else of it learns."""
        from capsid.tokenize.capsules.adapters import attach

        return attach(self._fitted(), rank, seed)

    def end_adapting(self, table: ItemTable, codes: Ragged, most: float) -> None:
        """Take over what the adapters learnt, as much of it as changes at most a share `most` of the `codes`."""
        from capsid.tokenize.capsules.stage_two import settle_adapters

        settled = settle_adapters(self, self._fitted(), self._checked(table), codes, most)
        self.crowded_, self.reference_ = settled.crowded, settled.reference

    def trace(self, table: ItemTable, *, strongest: int = 0) -> Trace:
        """What routing saw at every depth of every item."""
        return self.trace_vectors(self._checked(table), strongest=strongest)

    def trace_vectors(self, vectors_NI: np.ndarray, *, strongest: int = 0) -> Trace:
        """As `trace`, of a bare matrix."""
        from capsid.tokenize.capsules.encoding import trace

        return trace(self._fitted(), vectors_NI, strongest=strongest)

    def stop(self, trace: Trace) -> Stops:
        """Where the ids of a trace end, and why."""
        residual = trace.hard if self.residual_of == "hard" else trace.soft
        return stop(trace.confidence, residual, self.crowded_.mask(trace.codes), self.rules)

    def decode(self, codes: Ragged) -> np.ndarray:
        """Sum of the codes' centres; through the projection's decoder where there is one."""
        from capsid.tokenize.capsules.encoding import leave

        network = self._fitted()
        out = np.zeros((len(codes), network.depths[0].centres.shape[1]), dtype=np.float32)
        dense_NL = codes.dense()
        for depth, centres in enumerate(self.centres()[: dense_NL.shape[1]]):
            has_N = dense_NL[:, depth] >= 0
            out[has_N] += centres[dense_NL[has_N, depth]]
        return leave(network, out)

    def centres(self) -> tuple[np.ndarray, ...]:
        """One vector a token, by depth."""
        return tuple(layer.centres.detach().numpy() for layer in self._fitted().depths)

    def state(self) -> dict[str, np.ndarray]:
        """The network's arrays, crowded prefixes, and how training items looked."""
        arrays = {f"network/{n}": t.numpy() for n, t in self._fitted().state_dict().items()}
        arrays |= {f"crowded/{d}": keys for d, keys in enumerate(self.crowded_.keys)}
        return {**arrays, "reference": self.reference_, "inputs": np.array(self._fitted().inputs)}

    def load_state(self, state: dict[str, np.ndarray]) -> CapsuleTokenizer:
        """Arrays as saved."""
        from capsid.tokenize.capsules.encoding import load_network

        self.network_ = load_network(self, state)
        keys = tuple(state[f"crowded/{d}"] for d in range(len(self.codebooks)))
        self.crowded_ = Crowded(self.codebooks, keys)
        self.reference_ = state["reference"]
        return self

    def _checked(self, table: ItemTable) -> np.ndarray:
        width = self._fitted().inputs
        vectors = table.vectors(self.block)
        check_vectors(vectors, table.items, dim=width)
        return vectors

    def _fitted(self) -> CapsuleNetwork:
        if not hasattr(self, "network_"):
            raise NotFittedError("the tokenizer is not fitted", hint="call fit first")
        return self.network_
