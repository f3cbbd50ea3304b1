"""The tokenizer protocol: fitted on an item table, it gives every item a row of codes and knows its codebook sizes.

Optional abilities are declared here too, one protocol each. Callers check for an ability with `isinstance`; a
tokenizer has it if it defines the methods. There is no base class. Vectors of tokens follow from a tokenizer's
centres. Shapes: V tokens of the vocabulary, D width of the centres.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar, Protocol, Self, TypeVar, runtime_checkable

import numpy as np

from capsid.base.config import canonical_json
from capsid.base.run_options import CheckpointFile
from capsid.data.item_table import ItemTable
from capsid.ids.collisions import Costs
from capsid.ids.layout import TokenLayout
from capsid.ids.merges import MergeTable
from capsid.ids.semantic_ids import SemanticIds
from capsid.progress import Progress, silent
from capsid.ragged import Ragged

if TYPE_CHECKING:
    from torch import Tensor, nn


T = TypeVar("T")
CAUSES = ("confidence", "residual", "cap", "prefix")
CONFIDENCE, RESIDUAL, CAP, PREFIX = range(4)


def token_vectors(layout: TokenLayout, centres: Sequence[np.ndarray]) -> np.ndarray:
    """The centre of every token of a code, by depth; NaN for tokens without one. Shape: (V, D). A merged token gets the
    sum of its n members over sqrt(n), which keeps the norm of independent vectors."""
    out = np.full((layout.vocabulary, centres[0].shape[1]), np.nan, dtype=np.float32)
    for depth, rows in enumerate(centres):
        out[layout.bases[depth] : layout.bases[depth] + len(rows)] = rows
    members = layout.merges.members
    if len(members):
        sums = members.sums(out[members.values])
        out[layout.merges.first : layout.end] = sums / np.sqrt(members.lengths)[:, None]
    return out


def joined_vectors(systems: Sequence[tuple[np.ndarray, slice]], vocabulary: int) -> np.ndarray:
    """Vectors of the tokens of several id systems, each with the range of its tokens. They may have different widths
    and units: narrower ones are padded with 0, and all are scaled to the same mean square length."""
    widest = max(vectors_VD.shape[1] for vectors_VD, _ in systems)
    out = np.full((vocabulary, widest), np.nan, dtype=np.float32)
    for vectors_VD, own in systems:
        given_VD = vectors_VD[own]
        width, there = given_VD.shape[1], np.isfinite(given_VD).all(axis=1)
        length = np.sqrt(np.mean(given_VD[there].astype(np.float64) ** 2) * width) if there.any() else 1.0
        out[own][there] = 0.0
        out[own][there, :width] = given_VD[there] / max(length, 1e-6)
    return out


@dataclass(frozen=True, eq=False)
class Stops:
    """Where each id ends, and why (an index into CAUSES)."""

    lengths: np.ndarray
    causes: np.ndarray

    def shares(self, *, with_prefix: bool) -> dict[str, float]:
        """Share of each cause. `prefix` appears only if prefixes are counted."""
        n = max(len(self.causes), 1)
        names = CAUSES if with_prefix else CAUSES[:3]
        return {name: float((self.causes == i).sum() / n) for i, name in enumerate(names)}


@dataclass(frozen=True, eq=False)
class Trace:
    """Every depth of every item, as if no id stopped early. Shapes: (items, depths), `strongest*` (items, depths,
    S)."""

    codes: np.ndarray
    confidence: np.ndarray
    mass: np.ndarray
    soft: np.ndarray
    hard: np.ndarray
    grew: np.ndarray
    strongest: np.ndarray
    strongest_weight: np.ndarray

    def __len__(self) -> int:
        return len(self.codes)


# Changes when the codes of the same settings and arrays change.
VERSION = 1


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
        """Codes of every item of a table, including items that `fit` did not see. An item's codes do not depend on
        which other items are encoded with it. Code -1 means no token at that depth."""

    def decode(self, codes: Ragged) -> np.ndarray | None:
        """Vectors that the codes represent, or None if codes carry no meaning. Shape: (items, d)."""

    def centres(self) -> tuple[np.ndarray, ...] | None:
        """One vector per code, by depth, to initialise token embeddings; None if there are none."""

    def state(self) -> dict[str, np.ndarray]:
        """Learnt arrays by name."""

    def load_state(self, state: dict[str, np.ndarray]) -> Self:
        """Restore the learnt arrays."""


@runtime_checkable
class FitEncodes(Protocol):
    """Knows the codes of the fitted items when `fit` ends, so that they are not encoded again."""

    def fit_encode(
        self,
        table: ItemTable,
        beside: Beside | None = None,
        *,
        seed: int = 0,
        progress: Progress = silent,
        checkpoint: CheckpointFile | None = None,
    ) -> tuple[Ragged, Ragged | None]:
        """Fit, and return what `encode` would give for the same table, with confidences as `Confident` gives them.
        `beside` learns from the codes meanwhile."""


@runtime_checkable
class Confident(Protocol):
    """Gives a confidence for each code of an id."""

    def encode_confident(self, table: ItemTable) -> tuple[Ragged, Ragged]:
        """The codes of `encode`, with a confidence for each code."""


@runtime_checkable
class ReadsBlock(Protocol):
    """Makes codes from one named block of vectors of the item table."""

    block: str


@runtime_checkable
class LastCosts(Protocol):
    """Can give the cost of every alternative last code of an item, so that a collision policy can change that code."""

    def last_costs(self, table: ItemTable, codes: Ragged) -> Costs:
        """A function from rows of the table to the costs of every code at each item's last depth, all finite.

        `codes` are the items' codes: their last ones may change, those before stay and must be the ones that costs
        are computed for. Of the codes that `encode` gives, the last costs least. Columns beyond that depth's codebook
        are padding.
        """


@runtime_checkable
class Tracing(Protocol):
    """Routes items to several weighted codes at every depth, and decides where ids end."""

    def trace(self, table: ItemTable, *, strongest: int = 0) -> Trace:
        """The routing of every item at every depth, with the given number of strongest codes and their weights."""

    def trace_vectors(self, vectors_NI: np.ndarray, *, strongest: int = 0) -> Trace:
        """`trace` for a plain matrix of vectors."""

    def stop(self, trace: Trace) -> Stops:
        """Where the ids of a trace end, and why."""


@runtime_checkable
class Weighing(Protocol):
    """Gives items several weighted codes at every depth, so that a generator can read them as mixtures."""

    def strongest_codes(self, table: ItemTable, strongest: int) -> tuple[np.ndarray, np.ndarray]:
        """Codes and weights of shape (items, depths, strongest), strongest first; weights need not sum to 1. The first
        code is the strongest. A weight of 0 is padding."""


@runtime_checkable
class Adapting(Protocol):
    """Has small adapters that a generator can train, which may change the codes of some items. Until they are applied
    it assigns vectors to codes with differentiable weights."""

    def soft(self, x_UI: Tensor) -> tuple[Sequence[tuple[Tensor, Tensor]], Tensor]:
        """By depth the rows whose id goes on and their weights of all codes, and the tokenizer's own loss."""

    def begin_adapting(self, rank: int, *, seed: int = 0) -> nn.ModuleList:
        """Attach the adapters; the rest of the tokenizer stays frozen."""

    def end_adapting(self, table: ItemTable, codes: Ragged, most: float) -> None:
        """Apply the trained adapters, scaled so that at most a share `most` of the `codes` changes."""


@runtime_checkable
class AssignsCatalogue(Protocol):
    """Can choose the codes of a whole catalogue jointly, where `encode` treats each item independently."""

    def assign_catalogue(self, table: ItemTable) -> Ragged:
        """Codes of every item, chosen jointly."""


@dataclass(frozen=True, eq=False)
class JointReading:
    """Scores of all codes by depth, reconstructed vectors, and the tokenizer's own loss, all with gradients."""

    scores: Sequence[Tensor]
    decoded_UI: Tensor
    loss: Tensor


class Beside(Protocol):
    """What learns from a tokenizer's codes while the tokenizer trains. Also an `nn.Module`; its state is kept."""

    def see(self, rows_B: np.ndarray, codes_BL: Tensor) -> None:
        """The codes of some items, -1 behind the end of an id."""

    def recount(self) -> None:
        """Begin an epoch."""

    def loss(self, share: float) -> Tensor:
        """The weighted loss of a step, after this share of training."""


class Merges(Protocol):
    """Learns which neighbouring tokens to merge. An estimator like `Tokenizer`."""

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
        """Learn merges for unmerged ids from the table's vectors and training sequences."""

    def shifted(self, bias: float) -> Self:
        """A copy with the same merges and a gate bias that is larger by `bias`."""

    def state(self) -> dict[str, np.ndarray]:
        """Learnt arrays by name."""

    def load_state(self, state: dict[str, np.ndarray]) -> Self:
        """Restore the learnt arrays."""


@runtime_checkable
class Revising(Protocol):
    """Can make new codes from vectors learnt by a generator, in the block "learnt" of the table."""

    def revise(self, table: ItemTable) -> None:
        """Refit on those vectors with the same codebook sizes."""


def concatenated(parts: Sequence[T]) -> T:
    """Dataclasses of arrays with equal columns as one, row after row."""
    names = [f.name for f in fields(type(parts[0]))]  # type: ignore[arg-type]
    return type(parts[0])(**{name: np.concatenate([getattr(p, name) for p in parts]) for name in names})


def summed_centres(codes: Ragged, centres: Sequence[np.ndarray]) -> np.ndarray:
    """The sum of the centres of every row's codes; an absent code adds nothing. Shape: (items, d)."""
    out_ND = np.zeros((len(codes), centres[0].shape[1]), dtype=np.float32)
    dense_NL = codes.dense()
    for depth, centres_KD in enumerate(centres[: dense_NL.shape[1]]):
        has_N = dense_NL[:, depth] >= 0
        out_ND[has_N] += centres_KD[dense_NL[has_N, depth]]
    return out_ND


def tokenizer_key(tokenizer: Tokenizer) -> str:
    """A hash of all settings and learnt arrays."""
    digest = hashlib.sha256(f"{VERSION}{canonical_json(tokenizer)}".encode())
    for name, array in sorted(tokenizer.state().items()):
        digest.update(f"{name}{array.dtype}{array.shape}".encode())
        # As bytes of the array itself, not of a copy: some arrays grow with the catalogue and are mapped.
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()[:32]
