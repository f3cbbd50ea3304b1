"""Generators as parts of a recipe: the trained Transformers, and the popularity counter that needs no training.

All implement the decoder's protocol. None knows items: tokens in, scores of tokens out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from capsid.base.blocks.weights import load_weights
from capsid.base.randomness import child_seed
from capsid.errors import ConfigError, NotFittedError
from capsid.generate.backbone import Backbone, Predictions
from capsid.generate.network import CausalTransformer, State, TiedBackbone
from capsid.generate.shape import TokenSpace, TransformerShape
from capsid.generate.timeline import READINGS, MaskedTransformer, TimelineTransformer
from capsid.ids.reading import Lesson, ReadableIds, TokenBatch
from capsid.ids.semantic_ids import SemanticIds
from capsid.settings import Checked, check_together, setting


class Generator(Protocol):
    """The generator of a recipe. `history` is how many items it reads."""

    kind: ClassVar[str]
    history: int

    def build(self, ids: SemanticIds, counts: np.ndarray, *, seed: int, vectors: np.ndarray | None = None) -> Self:
        """Create the weights for these ids; `vectors` may initialise the token embeddings. Returns self."""

    def predict(self, lesson: Lesson, inputs_RD: Tensor | None = None) -> Predictions:
        """The rows that predict the tokens of a lesson's items."""

    def start(self, histories: TokenBatch, inputs_RD: Tensor | None = None) -> tuple[Any, Tensor]:
        """See `capsid.decode.model`."""

    def step(self, state: Any, parents_UW: Tensor, tokens_UW: Tensor) -> tuple[Any, Tensor]:
        """See `capsid.decode.model`."""

    def scores(self, state: Any, rows_UWD: Tensor, row_R: Tensor | None = None) -> Tensor:
        """See `capsid.decode.model`."""

    def scores_of(self, state: Any, rows_UWD: Tensor, row_E: Tensor, token_E: Tensor) -> Tensor:
        """See `capsid.decode.model`."""

    def state(self) -> dict[str, Tensor]:
        """Weights by name."""

    def load_state(self, ids: ReadableIds, state: dict[str, Tensor]) -> Self:
        """Weights as saved, for the ids that they were trained with. Returns self."""


@runtime_checkable
class Trainable(Generator, Protocol):
    """A generator with a trainable network."""

    @property
    def network(self) -> Backbone:
        """The network, once built."""


@runtime_checkable
class ChoosesTargets(Protocol):
    """A generator whose training sequences have one target each in a step (`targets="last"`), or all of their items."""

    targets: str


class NetworkGenerator:
    """A generator around a backbone. A subclass is a dataclass with a `kind`, its settings, and `make`."""

    history: int

    def make(self, ids: ReadableIds) -> Backbone:
        """The backbone for these ids, its weights not set."""
        raise NotImplementedError

    def begin(self, ids: SemanticIds, vectors: np.ndarray | None, seed: int) -> None:
        """Called when the weights are fresh; `vectors` may initialise token embeddings (NaN rows stay random)."""

    @property
    def network(self) -> Backbone:
        if not hasattr(self, "network_"):
            raise NotFittedError("the generator has no weights yet", hint="fit or load it first")
        return self.network_

    def build(self, ids: SemanticIds, counts: np.ndarray, *, seed: int, vectors: np.ndarray | None = None) -> Self:
        check_together(self)
        self.network_ = self.make(ids)
        self.network_.reset(torch.Generator().manual_seed(child_seed(seed, "weights")))
        self.begin(ids, vectors, seed)
        self.network_.eval()
        return self

    def predict(self, lesson: Lesson, inputs_RD: Tensor | None = None) -> Predictions:
        return self.network.predict(lesson, inputs_RD)

    def start(self, histories: TokenBatch, inputs_RD: Tensor | None = None) -> tuple[Any, Tensor]:
        return self.network.start(histories, inputs_RD)

    def step(self, state: Any, parents_UW: Tensor, tokens_UW: Tensor) -> tuple[Any, Tensor]:
        return self.network.step(state, parents_UW, tokens_UW)

    def scores(self, state: Any, rows_UWD: Tensor, row_R: Tensor | None = None) -> Tensor:
        return self.network.scores(state, rows_UWD, row_R)

    def scores_of(self, state: Any, rows_UWD: Tensor, row_E: Tensor, token_E: Tensor) -> Tensor:
        return self.network.scores_of(state, rows_UWD, row_E, token_E)

    def state(self) -> dict[str, Tensor]:
        return {name: t.detach().clone() for name, t in self.network.state_dict().items()}

    def load_state(self, ids: ReadableIds, state: dict[str, Tensor]) -> Self:
        self.network_ = load_weights(lambda: self.make(ids), state)
        return self


@dataclass(kw_only=True)
class TiedGenerator(Checked, NetworkGenerator):
    """What the generators with a tied token table share. With `compose`, a merged token's embedding is the sum of its
    members' embeddings and its own, so that all merged tokens with a member share what is learnt about it."""

    dropped: ClassVar[dict[str, str]] = dict.fromkeys(
        ("score_length", "token_bias", "own_dropout"), "it never helped and is gone"
    )
    history: int = setting(50, "How many of a user's latest items are read.", least=1)
    warm_start: bool = setting(True, "Whether token embeddings are initialised with the tokenizer's centres.")
    compose: bool = setting(True, "Whether a merged token's embedding is the sum of its members' and its own.")

    def begin(self, ids: SemanticIds, vectors: np.ndarray | None, seed: int) -> None:
        """With `warm_start`, token embeddings start from the vectors."""
        network = self.network
        assert isinstance(network, TiedBackbone)
        if self.warm_start and vectors is not None:
            if self.compose and len(ids.layout.merges):
                # A composed token starts as its members; its own row stays 0.
                vectors = vectors.copy()
                vectors[network.token.composed] = np.nan
            _start_tokens(network.token, vectors, seed)


@dataclass(kw_only=True)
class ReadsSoftly(TiedGenerator):
    """A generator that may read items as mixtures of codes, and learns whether users return to items."""

    soft_input: int = setting(
        0, "Strongest codes per depth that items are read as mixtures of; 0: hard codes.", least=0
    )
    soft_sharpness: float = setting(
        1.0, "Power of these mixtures' weights; above 1 the strongest counts more.", above=0
    )
    repeats: bool = setting(True, "Whether it learns how likely users are to return to an item of their history.")


@dataclass(kw_only=True)
class TransformerGenerator(TiedGenerator, TransformerShape):
    """The causal Transformer of CapsID, appendix A.3: 4 layers, 4 heads, width 128, feed-forward 512, 50 items."""

    kind: ClassVar[str] = "transformer"

    def make(self, ids: ReadableIds) -> Backbone:
        return CausalTransformer(self, TokenSpace.of(ids, self.history, compose=self.compose))

    def check_together(self) -> None:
        self.check_sizes()


@dataclass(kw_only=True)
class SasRecGenerator(TransformerGenerator):
    """SASRec's own network (Kang & McAuley 2018, arXiv 1808.09781, as its authors' code has it). Its blocks, and
    attention that sees the empty positions of a history that is shorter than it might be."""

    kind: ClassVar[str] = "sasrec-transformer"

    def make(self, ids: ReadableIds) -> Backbone:
        return CausalTransformer(self, TokenSpace.of(ids, self.history, compose=self.compose), sasrec=True)


@dataclass(kw_only=True)
class ItemwiseGenerator(TransformerGenerator):
    """A generator that reads a history at one position per item, see `capsid.generate.timeline`. `reads`: heads weigh
    by distance alone (`mixing`), or attention has learnt biases of distances (`distances`) or position embeddings
    (`places`), or the history is read as in `SasRecGenerator` (`sasrec`)."""

    layers: int = setting(2, "Layers that read the history, one position per item.", least=1, most=1_000)
    cosine_temperature: float = setting(0.06, "Scores are cosines divided by this; 0: inner products.", least=0)
    reads: str = setting(
        "mixing",
        "How the history is read: by distance alone, by attention with distances or positions, or by SASRec's blocks.",
        choices=READINGS,
    )


@dataclass(kw_only=True)
class TimelineGenerator(ReadsSoftly, ItemwiseGenerator):
    """A timeline of items, then the next item's tokens by a Transformer over depth: see `capsid.generate.timeline`."""

    kind: ClassVar[str] = "timeline"
    depth_layers: int = setting(1, "Layers that predict the next item's tokens one by one.", least=1, most=1_000)

    def make(self, ids: ReadableIds) -> TimelineTransformer:
        space = TokenSpace.of(ids, self.history, compose=self.compose)
        given: dict[str, Any] = {"depth_layers": self.depth_layers, "reads": self.reads, "repeats": self.repeats}
        return TimelineTransformer(self, space, **given)

    def in_system(self, state: State, histories: TokenBatch, system: int) -> State:
        network = self.network
        assert isinstance(network, TimelineTransformer)
        return network.in_system(state, histories, system)


@dataclass(kw_only=True)
class MaskedGenerator(TransformerGenerator):
    """Bidirectional attention over one-token ids, trained to predict masked items: see `capsid.generate.timeline`.
    `mask` is the share of a sequence's items that is masked. In a share `only_last` of the sequences only the last item
    is masked, as when items are recommended."""

    kind: ClassVar[str] = "masked"
    layers: int = setting(2, "Transformer layers.", least=1, most=1_000)
    mask: float = setting(0.2, "Share of a sequence's items that is masked.", least=0, most=1)
    only_last: float = setting(0.1, "Share of the sequences in which only the last item is masked.", least=0, most=1)

    def build(self, ids: SemanticIds, counts: np.ndarray, *, seed: int, vectors: np.ndarray | None = None) -> Self:
        """Fresh weights; ids must have one token per item, because a mask replaces one token."""
        require_one_token(ids, "masked")
        return super().build(ids, counts, seed=seed, vectors=vectors)

    def make(self, ids: ReadableIds) -> MaskedTransformer:
        return MaskedTransformer(self, TokenSpace.of(ids, self.history), self.mask, self.only_last)


def require_one_token(ids: SemanticIds, generator: str) -> None:
    """Refuse ids of several tokens."""
    if int(ids.prefix_free.lengths.max()) != 1:
        raise ConfigError(f"the {generator} generator needs one-token ids", hint="use the atomic tokenizer")


def _start_tokens(embedding: nn.Embedding, vectors_VD: np.ndarray, seed: int) -> None:
    """Copy the given vectors into their rows, rotated or projected to the width, scaled to the usual deviation."""
    given = np.flatnonzero(np.isfinite(vectors_VD).all(axis=1))
    if not len(given):
        return
    vectors = torch.as_tensor(vectors_VD[given].astype(np.float32))
    width = embedding.weight.shape[1]
    if vectors.shape[1] != width:
        # A random orthonormal map preserves inner products in expectation.
        source = torch.Generator().manual_seed(child_seed(seed, "warm start"))
        square = torch.randn(max(vectors.shape[1], width), max(vectors.shape[1], width), generator=source)
        vectors = vectors @ torch.linalg.qr(square)[0][: vectors.shape[1], :width]
    vectors = vectors * (embedding.weight[torch.as_tensor(given)].std() / vectors.std().clamp_min(1e-6))
    with torch.no_grad():
        embedding.weight[torch.as_tensor(given)] = vectors


@dataclass(kw_only=True)
class PopularityGenerator(Checked):
    """Scores every token by its training count, whatever the history: the simplest baseline."""

    kind: ClassVar[str] = "popularity"
    history: int = setting(1, "How many of a user's latest items are read.", least=1)

    def build(self, ids: SemanticIds, counts: np.ndarray, *, seed: int, vectors: np.ndarray | None = None) -> Self:
        """Count tokens; ids must have one token per item, or prefixes would be scored like items."""
        require_one_token(ids, "popularity")
        # Items that share an id are recommended together, so its count is theirs together.
        taken = np.zeros(ids.layout.vocabulary, dtype=counts.dtype)
        np.add.at(taken, ids.prefix_free.values, counts)
        logits = np.full(ids.layout.vocabulary, -1e9, dtype=np.float32)
        logits[ids.prefix_free.values] = np.log(taken[ids.prefix_free.values] + 0.5)
        self.logits_ = torch.as_tensor(logits)
        return self

    def predict(self, lesson: Lesson, inputs_RD: Tensor | None = None) -> Predictions:
        """The same scores for every token of a lesson: products with rows of one 1."""
        return Predictions(torch.ones(len(lesson.tokens.values), 1), lesson.tokens, self.logits_[:, None])

    def start(self, histories: TokenBatch, inputs_RD: Tensor | None = None) -> tuple[None, Tensor]:
        """One empty row per history: all have the same scores."""
        return None, torch.zeros(len(histories), 1, 0)

    def step(self, state: None, parents_UW: Tensor, tokens_UW: Tensor) -> tuple[None, Tensor]:
        """Ids end after one token, so a step happens only for padding."""
        return None, torch.zeros(*tokens_UW.shape, 0)

    def scores(self, state: None, rows_UWD: Tensor, row_R: Tensor | None = None) -> Tensor:
        return self.logits_.repeat(*(rows_UWD.shape[:2] if row_R is None else row_R.shape), 1)

    def scores_of(self, state: None, rows_UWD: Tensor, row_E: Tensor, token_E: Tensor) -> Tensor:
        return self.logits_[token_E]

    def state(self) -> dict[str, Tensor]:
        if not hasattr(self, "logits_"):
            raise NotFittedError("the generator has no counts yet", hint="fit or load it first")
        return {"logits": self.logits_}

    def load_state(self, ids: ReadableIds, state: dict[str, Tensor]) -> Self:
        logits = state["logits"]
        if tuple(logits.shape) != (ids.layout.vocabulary,) or logits.dtype != torch.float32 or logits.isnan().any():
            raise ConfigError(f"the saved scores are not one number for each of {ids.layout.vocabulary:,} tokens")
        self.logits_ = logits
        return self
