"""The CapsID tokenizer: item vectors to ids of varying length by capsule routing (paper, Algorithm 1).

Every variant of the paper is a setting here: literal equations, a hard winner, other numbers of rounds, fixed length.
The network itself, and torch with it, is loaded when it is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from capsid.data.item_table import ItemTable
from capsid.encode.base import check_vectors, require_items
from capsid.errors import ConfigError, NotFittedError
from capsid.ids.reassign import Costs
from capsid.progress import Progress, silent
from capsid.ragged import Ragged
from capsid.running import CheckpointFile
from capsid.settings import check_settings, setting
from capsid.tokenize.stopping import Crowded, StopRules, Stops, stop
from capsid.train.options import Training

if TYPE_CHECKING:
    from torch import Tensor, nn

    from capsid.tokenize.capsules.network import CapsuleNetwork
    from capsid.tokenize.trace import Trace


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

    Fixed length L: L codebooks, confidence 1, residual 0.
    """

    kind: ClassVar[str] = "capsules"
    codebooks: tuple[int, ...] = setting(
        (256, 256, 256, 256),
        "Number of capsules at each depth; an id has at most one code per depth.",
        least=1,
        count=(1, None),
    )
    dim: int = setting(0, "Width of the capsules' votes; 0: as wide as the vectors.", least=0)
    rank: int = setting(4, "Rank of the pose matrices that make votes; 0: full matrices.", least=0)
    rounds: int = setting(3, "Rounds of routing by agreement.", least=1)
    readout: str = setting(
        "post", "Whether the code is read after the last update of the routing or before it.", choices=("post", "pre")
    )
    agreement: str = setting(
        "cosine", "How the agreement of a vote with the consensus is measured.", choices=("cosine", "dot")
    )
    on_direction: bool = setting(True, "Whether routing sees the residual's direction only, not its length.")
    shared_poses: bool = setting(
        False, "Whether all depths share their pose matrices; their codebooks must have one size."
    )
    projection: int = setting(0, "Width of a trained projection of the vectors; 0: no projection.", least=0)
    winner_mass: tuple[float, ...] = setting(
        (0.45, 0.65, 0.82, 0.88, 0.92, 0.95),
        "Routing weight of the winner that each depth's temperature is set to reach; empty: no temperature.",
        above=0,
        below=1,
    )
    winner: str = setting(
        "soft", "Whether the routed mixture or the winner alone is subtracted.", choices=("soft", "hard")
    )
    leak: tuple[float, float] = setting(
        (0.0, 0.0),
        "Share of the input-dependent output in what is subtracted, at the start and at the end of training.",
        least=0,
        most=1,
        count=2,
    )
    confidence: float = setting(0.0, "An id may end where its confidence reaches this; 1: never.", least=0, most=1)
    residual: float = setting(0.0, "An id may end where its residual's norm is no larger than this; 0: never.", least=0)
    residual_of: str = setting("hard", "Which residual that norm is taken of.", choices=("hard", "soft"))
    crowd: int = setting(
        1, "An id ends only where at most this many codes begin with its prefix; 0: prefixes are not counted.", least=0
    )
    shortest: int = setting(1, "Fewest codes in an id.", least=1)
    start: str = setting("data", "Whether capsules start from the data or at random.", choices=("data", "random"))
    soft_weight: float = setting(1.0, "Weight of the reconstruction loss of routed mixtures.", least=0)
    hard_weight: float = setting(1.0, "Weight of the reconstruction loss of the codes' centres.", least=0)
    spread_weight: float = setting(0.1, "Weight of the spread loss between the winner and its rivals.", least=0)
    rivals: str = setting(
        "strongest", "Which rivals the spread loss compares the winner with.", choices=("strongest", "mean", "sum")
    )
    margin: tuple[float, float] = setting(
        (0.2, 0.9), "Margin of the spread loss, at the start and at the end of training.", least=0, most=1, count=2
    )
    length_weight: float = setting(0.05, "Weight of the loss on the expected length of ids.", least=0)
    tie_weight: float = setting(0.25, "Weight of the loss that ties outputs to centres.", least=0)
    balance_weight: float = setting(0.2, "Weight of the loss that balances the use of capsules.", least=0)
    reseed: bool = setting(True, "Whether capsules that win no item start anew from the data.")
    training: Training = setting(factory=stage_one_training, about="How stage 1 trains.")
    sample: int = setting(65_536, "How many items the start and the validation look at, at most.", least=1)
    block: str = setting("item", "Name of the vectors that are tokenised.", count=(1, None))

    def __post_init__(self) -> None:
        check_settings(self)
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
        checkpoint: CheckpointFile | None = None,
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

    def soft(self, x_UI: Tensor) -> tuple[list[Tensor], Tensor]:
        """Routing weights by depth, and the terms of stage 1 with the margin at its end."""
        from capsid.tokenize.capsules.stage_one import routing_loss

        loss, depths = routing_loss(self, self._fitted(), x_UI, 1.0)
        return [depth.routed.weights_BK for depth in depths], loss

    def last_costs(self, table: ItemTable) -> Costs:
        """-log of the routing weights at the depth where an id ends."""
        from capsid.tokenize.capsules.encoding import last_weights

        network, vectors = self._fitted(), self._checked(table)
        least = np.finfo(np.float32).tiny

        def costs(rows: np.ndarray) -> np.ndarray:
            weights_RK = last_weights(network, np.asarray(vectors[rows]), lambda seen: self.stop(seen).lengths)
            return -np.log(np.maximum(weights_RK, least))

        return costs

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
