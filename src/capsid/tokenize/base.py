"""What a tokenizer is: fitted on an item table, it gives every item a row of codes, and knows its codebook sizes.

What only some tokenizers can do is declared here too, one protocol per ability. Whoever needs an ability asks with
`isinstance`; a tokenizer has it by defining the methods, and inherits from nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol, Self, runtime_checkable

import numpy as np

from capsid.data.item_table import ItemTable
from capsid.ids.merges import MergeTable
from capsid.ids.reassign import Costs
from capsid.ids.semantic_ids import SemanticIds
from capsid.progress import Progress, silent
from capsid.ragged import Ragged
from capsid.running import CheckpointFile
from capsid.tokenize.stopping import Stops
from capsid.tokenize.trace import Trace

if TYPE_CHECKING:
    from torch import Tensor, nn


class Tokenizer(Protocol):
    """Estimator: fields are hyperparameters, learnt state ends in an underscore."""

    kind: ClassVar[str]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Codebook size of every depth, once fitted."""

    def fit(
        self, table: ItemTable, *, seed: int = 0, progress: Progress = silent, checkpoint: CheckpointFile | None = None
    ) -> Self:
        """Learn codebooks. Long training resumes from `checkpoint` if it exists."""

    def encode(self, table: ItemTable) -> Ragged:
        """Codes of every item of a table, also of items that were not there at `fit`.

        An item's codes do not depend on which other items are encoded with it. Code -1 at a depth: no token there.
        """

    def decode(self, codes: Ragged) -> np.ndarray | None:
        """Vectors that the codes stand for, or None if codes mean nothing by themselves. Shape: (items, d)."""

    def centres(self) -> tuple[np.ndarray, ...] | None:
        """One vector per code, by depth, to start token embeddings from; None if there are none."""

    def state(self) -> dict[str, np.ndarray]:
        """Learnt arrays by name."""

    def load_state(self, state: dict[str, np.ndarray]) -> Self:
        """Learnt arrays as saved."""


@runtime_checkable
class FitEncodes(Protocol):
    """Knows the codes of the fitted items when the fit ends, so that they need not be encoded once more."""

    def fit_encode(
        self, table: ItemTable, *, seed: int = 0, progress: Progress = silent, checkpoint: CheckpointFile | None = None
    ) -> Ragged:
        """`fit`, and what `encode` gives for the same table afterwards."""


@runtime_checkable
class Confident(Protocol):
    """Says how sure it is of each code of an id."""

    def encode_confident(self, table: ItemTable) -> tuple[Ragged, Ragged]:
        """What `encode` gives, and a confidence for each code."""


@runtime_checkable
class ReadsBlock(Protocol):
    """Makes codes from one block of vectors of the item table, and says from which."""

    block: str


@runtime_checkable
class LastCosts(Protocol):
    """Can say what every other last code would cost an item, so that a collision policy may change it."""

    def last_costs(self, table: ItemTable) -> Costs:
        """A function from rows of the table to the costs of every code at each item's last depth, all finite.

        The code that `encode` gives costs least. Columns beyond that depth's codebook mean nothing.
        """


@runtime_checkable
class Tracing(Protocol):
    """Routes items to several codes at every depth, says how strongly, and ends ids by itself."""

    def trace(self, table: ItemTable, *, strongest: int = 0) -> Trace:
        """What routing saw at every depth of every item, with so many of the strongest codes and their weights."""

    def trace_vectors(self, vectors_NI: np.ndarray, *, strongest: int = 0) -> Trace:
        """The same of a bare matrix."""

    def stop(self, trace: Trace) -> Stops:
        """Where the ids of a trace end, and why."""


@runtime_checkable
class SoftAssigning(Protocol):
    """Assigns vectors to codes by weights that have gradients, for training together with a generator."""

    def soft(self, x_UI: Tensor) -> tuple[Sequence[Tensor], Tensor]:
        """Weights of all codes by depth, each of shape (items, K_l), and the tokenizer's own loss."""


@runtime_checkable
class Adapting(Protocol):
    """Has small parameters that a generator may train, after which some items get other codes."""

    def begin_adapting(self, rank: int, *, seed: int = 0) -> nn.ModuleList:
        """Attach the parameters; nothing else of the tokenizer learns."""

    def end_adapting(self, table: ItemTable, codes: Ragged, most: float) -> None:
        """Take over what they learnt, as much of it as changes at most a share `most` of the `codes`."""


@runtime_checkable
class AssignsCatalogue(Protocol):
    """May choose the codes of a whole catalogue together; `encode` gives those of items by themselves."""

    def assign_catalogue(self, table: ItemTable) -> Ragged:
        """Codes of every item, each in view of all others."""


@runtime_checkable
class LearnsBooks(Protocol):
    """Quantises latent vectors with residual codebooks that a generator may train."""

    def centres(self) -> tuple[np.ndarray, ...]:
        """The codebooks."""

    def latents(self, vectors_NI: np.ndarray) -> np.ndarray:
        """What is quantised of items' vectors. Shape: (items, D)."""

    def with_books(self, books: Sequence[np.ndarray]) -> Tokenizer:
        """The same with other codebooks of the same sizes."""


class Merges(Protocol):
    """Learns which neighbouring tokens are written as one. Estimator as `Tokenizer`."""

    kind: ClassVar[str]

    @property
    def table_(self) -> MergeTable:
        """The merges, once fitted."""

    def fit(
        self,
        ids: SemanticIds,
        table: ItemTable,
        *,
        centres_VD: np.ndarray | None = None,
        seed: int = 0,
        progress: Progress = silent,
        checkpoint: CheckpointFile | None = None,
    ) -> Self:
        """Learn merges for ids that have none, from the table's vectors and training sequences."""

    def shifted(self, bias: float) -> Self:
        """The same merges with the gate's bias moved."""

    def state(self) -> dict[str, np.ndarray]:
        """Learnt arrays by name."""

    def load_state(self, state: dict[str, np.ndarray]) -> Self:
        """Learnt arrays as saved."""


@runtime_checkable
class Revising(Protocol):
    """Can find new codes from vectors that a generator has learnt, in the block "learnt" of the table."""

    def revise(self, table: ItemTable) -> None:
        """Learn from those vectors; the codebook sizes stay."""
