"""The CapsID tokenizer: item vectors to ids of varying length by capsule routing (CapsID, arXiv 2605.05096,
Algorithm 1).

Algorithm 1 itself is in `algorithm.py`, and in loops in `reference.py`. The paper's variants are settings.
Training is imported on demand.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from capsid.base.run_options import CheckpointFile
from capsid.data.item_table import ItemTable
from capsid.encode.base import check_vectors, fitted, require_items
from capsid.ids.collisions import Costs
from capsid.ids.order import SharedPrefixes
from capsid.progress import Progress, silent
from capsid.ragged import Ragged
from capsid.tokenize.base import Beside, Stops, Trace, summed_centres
from capsid.tokenize.capsules import catalogue
from capsid.tokenize.capsules.capsules import CapsuleNetwork, load_network
from capsid.tokenize.capsules.objective import objective
from capsid.tokenize.capsules.settings import CapsuleSettings


@dataclass(kw_only=True)
class CapsuleTokenizer(CapsuleSettings):
    """The settings, and after `fit` the network and the prefixes that several items share."""

    @property
    def sizes(self) -> tuple[int, ...]:
        self._fitted()
        return self.codebooks

    def fit(
        self, table: ItemTable, *, seed: int = 0, progress: Progress = silent, checkpoint: CheckpointFile | None = None
    ) -> CapsuleTokenizer:
        """Stage 1 on the table's vectors, which may be a mapped file larger than memory."""
        self.fit_encode(table, seed=seed, progress=progress, checkpoint=checkpoint)
        return self

    def fit_encode(
        self,
        table: ItemTable,
        beside: Beside | None = None,
        *,
        seed: int = 0,
        progress: Progress = silent,
        checkpoint: CheckpointFile | None = None,
    ) -> tuple[Ragged, Ragged]:
        """Fit, and return what `encode_confident` would give; `beside` learns from the codes of every epoch."""
        from capsid.tokenize.capsules.stage_one import fit_stage_one

        require_items(table)
        vectors = table.vectors(self.block)
        check_vectors(vectors, table.items)
        fitted = fit_stage_one(self, table, beside, seed=seed, checkpoint=checkpoint, progress=progress)
        self.network_: CapsuleNetwork = fitted.network
        self.shared_prefixes_: SharedPrefixes = fitted.shared
        self.reference_: np.ndarray = fitted.reference
        return fitted.encoded

    def encode(self, table: ItemTable) -> Ragged:
        """Codes of every item, each cut where its id ends."""
        return catalogue.encode(self, self._fitted(), self._checked(table), self.shared_prefixes_, confident=False)[0]

    def encode_confident(self, table: ItemTable) -> tuple[Ragged, Ragged]:
        """Codes as `encode` gives them, and a confidence for each."""
        return catalogue.encode(self, self._fitted(), self._checked(table), self.shared_prefixes_)

    def begin_adapting(self, rank: int, *, seed: int = 0) -> nn.ModuleList:
        """Attach low-rank adapters to the routing of every depth for stage 2; everything else stays frozen."""
        from capsid.tokenize.capsules.stage_two import attach

        return attach(self._fitted(), rank, seed)

    def end_adapting(self, table: ItemTable, codes: Ragged, most: float) -> None:
        """Apply the trained adapters, scaled so that at most a share `most` of the `codes` changes."""
        from capsid.tokenize.capsules.stage_two import settle

        vectors_NI = self._checked(table)
        self.shared_prefixes_, self.reference_ = settle(self, self._fitted(), vectors_NI, codes, most)

    def soft(self, x_UI: Tensor) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        """The rows whose id goes on and their routing weights by depth, and stage 1's loss with the final margin."""
        found = objective(self, self._fitted(), x_UI, 1.0)
        return [(rows, step.weights_BK) for rows, step in found.steps], found.loss

    def last_costs(self, table: ItemTable, codes: Ragged) -> Costs:
        """-log of the routing weights at the depth where an id ends; routing does not depend on the codes."""
        network, vectors = self._fitted(), self._checked(table)
        least = np.finfo(np.float32).tiny

        def costs(rows: np.ndarray) -> np.ndarray:
            weights_RK = catalogue.last_weights(
                network, np.asarray(vectors[rows]), lambda seen: self.stop(seen).lengths
            )
            return -np.log(np.maximum(weights_RK, least))

        return costs

    def trace(self, table: ItemTable, *, strongest: int = 0) -> Trace:
        """The routing of every item at every depth."""
        return self.trace_vectors(self._checked(table), strongest=strongest)

    def strongest_codes(self, table: ItemTable, strongest: int) -> tuple[np.ndarray, np.ndarray]:
        """Codes and routing weights of every item at every depth."""
        trace = self.trace(table, strongest=strongest)
        return trace.strongest, trace.strongest_weight

    def trace_vectors(self, vectors_NI: np.ndarray, *, strongest: int = 0) -> Trace:
        """`trace` for a plain matrix of vectors."""
        return catalogue.trace(self._fitted(), vectors_NI, strongest=strongest)

    def stop(self, trace: Trace) -> Stops:
        """Where the ids of a trace end, and why."""
        return catalogue.stop(trace.confidence, trace.soft, self.shared_prefixes_.mask(trace.codes), self.rules)

    def decode(self, codes: Ragged) -> np.ndarray:
        """Sum of the codes' centres, through the projection's decoder if there is one."""
        return self._fitted().leave(summed_centres(codes, self.centres()))

    def centres(self) -> tuple[np.ndarray, ...]:
        """One vector per token, by depth."""
        return tuple(capsules.centres.detach().numpy() for capsules in self._fitted().depths)

    def state(self) -> dict[str, np.ndarray]:
        """The network's arrays, shared prefixes (named `crowded` in stored runs), and statistics of training items."""
        arrays = {f"network/{n}": t.numpy() for n, t in self._fitted().state_dict().items()}
        arrays |= {f"crowded/{d}": keys for d, keys in enumerate(self.shared_prefixes_.keys)}
        return {**arrays, "reference": self.reference_, "inputs": np.array(self._fitted().inputs)}

    def load_state(self, state: dict[str, np.ndarray]) -> CapsuleTokenizer:
        self.network_ = load_network(self, state)
        keys = tuple(state[f"crowded/{d}"] for d in range(len(self.codebooks)))
        self.shared_prefixes_ = SharedPrefixes(self.codebooks, keys)
        self.reference_ = state["reference"]
        return self

    def _checked(self, table: ItemTable) -> np.ndarray:
        width = self._fitted().inputs
        vectors = table.vectors(self.block)
        check_vectors(vectors, table.items, dim=width)
        return vectors

    def _fitted(self) -> CapsuleNetwork:
        return fitted(getattr(self, "network_", None), self)
