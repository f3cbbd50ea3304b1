"""A method is a value: its encoder, tokenizer, collisions, merges, reading, generator, loss terms, decoder, schedule.

No method has its own class, trainer or loader. If these parts cannot express a method, extend a part instead of adding
a branch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from capsid.base.config import Kinds, from_dict, override, to_dict
from capsid.base.release_0_1 import recipe_today
from capsid.data.augment import Augment
from capsid.decode.beam import BeamSearch
from capsid.decode.exact import ExactScoring, ParallelScoring
from capsid.decode.fusion import BeamFusion
from capsid.decode.mixed import Ensemble, Mixed
from capsid.decode.ranked import Ranker
from capsid.encode.base import ItemEncoder
from capsid.encode.joined import Views
from capsid.encode.kinds import ENCODERS
from capsid.encode.precomputed import PrecomputedEncoder
from capsid.errors import ConfigError
from capsid.generate.dense_match import DenseMatch
from capsid.generate.encoder_decoder import EncoderDecoderGenerator
from capsid.generate.generator import (
    Generator,
    MaskedGenerator,
    PopularityGenerator,
    ReadsSoftly,
    SasRecGenerator,
    TimelineGenerator,
    TransformerGenerator,
)
from capsid.generate.joint_rivals import Alternating, GumbelCodes
from capsid.generate.next_token import NextToken
from capsid.generate.parallel import AllCodes, ParallelGenerator
from capsid.generate.routing_adapters import RoutingAdapters
from capsid.generate.similar_items import EaseGenerator, ItemKnnGenerator, VectorKnnGenerator
from capsid.generate.terms import JointTerm, Part, Term
from capsid.ids.collisions import COLLISIONS, Bucket, CollisionPolicy
from capsid.ids.reading import READINGS, ItemByItem, Reading
from capsid.ids.trie import Over
from capsid.memory.memory import Memory
from capsid.settings import Checked, check_together, setting
from capsid.tokenize.base import Merges, Tokenizer
from capsid.tokenize.capsules.semantic_bpe import SemanticBPE
from capsid.tokenize.item_tokenizer import ItemTokenizer
from capsid.tokenize.kinds import MERGES, TOKENIZER_PARTS, TOKENIZERS, IdSystem
from capsid.train.options import Training

GENERATORS: dict[str, type] = {
    g.kind: g
    for g in (
        TransformerGenerator,
        SasRecGenerator,
        TimelineGenerator,
        EncoderDecoderGenerator,
        MaskedGenerator,
        ParallelGenerator,
        PopularityGenerator,
        ItemKnnGenerator,
        EaseGenerator,
        VectorKnnGenerator,
    )
}
TERMS: dict[str, type] = {t.kind: t for t in (NextToken, AllCodes, DenseMatch)}
# Terms that learn beside the generator for a part of a phase.
JOINT_TERMS: dict[str, type] = {t.kind: t for t in (RoutingAdapters, GumbelCodes, Alternating)}


RANKERS: dict[str, type] = {r.kind: r for r in (BeamSearch, ExactScoring, ParallelScoring, BeamFusion, Ensemble, Mixed)}


@dataclass(kw_only=True, frozen=True)
class Phase(Checked):
    """One phase of training: which parameters learn (shell patterns), with which loss terms, for how long.

    `retokenize` gives all items new ids before the phase, from the generator's embeddings; trie and labels are rebuilt.
    `adapt` trains the codes jointly with the generator at the start of the phase (stage 2). `augment` crops and
    shuffles the training sequences.
    """

    kind: ClassVar[str] = "phase"
    name: str = setting("generator", "Name of the phase in progress lines and in the log.", count=(1, None))
    learns: tuple[str, ...] = setting(("*",), "Shell patterns of the parameters that learn.", count=(1, None))
    terms: tuple[Term, ...] = setting((), "Loss terms of this phase; empty: those of the recipe's objective.")
    training: Training = setting(factory=Training, about="Optimiser, batches, validation and early stopping.")
    retokenize: bool = setting(False, "Whether items get new ids from the generator's embeddings before the phase.")
    adapt: JointTerm | None = setting(None, "A term trained with the generator at first, which gives items new codes.")
    augment: Augment | None = setting(None, "How training sequences are varied.")

    def check_together(self) -> None:
        if self.adapt is not None and self.training.lanes > 1:
            raise ConfigError(
                f"training.lanes must be 1 where a phase adapts codes ({self.adapt.kind}), got {self.training.lanes}: "
                "such terms need the whole batch",
                hint="fit this recipe with one process, or drop adapt from the phase",
            )

    def in_steps(self, rows: int) -> Phase:
        """The same with its training in optimiser steps, for this many training sequences."""
        return self if self.training.unit == "steps" else replace(self, training=self.training.in_steps(rows))

    def stretches(self) -> tuple[Stretch, ...]:
        """The whole phase; with `adapt`, its parts, then the rest."""
        steps = self.training.steps
        if self.adapt is None:
            return (Stretch(self, range(steps)),)
        parts = self.adapt.parts(steps)
        begun = max((part.steps.stop for part in parts if not part.freezes), default=0)
        found = [Stretch(self, part.steps, part) for part in parts]
        if begun < steps:
            found.append(Stretch(self, range(begun, steps)))
        later = replace(self, retokenize=False)
        return (found[0], *(replace(stretch, phase=later) for stretch in found[1:]))


@dataclass(frozen=True)
class Stretch:
    """Consecutive steps of a phase during which ids do not change; `part` says what a joint term does meanwhile."""

    phase: Phase
    steps: range
    part: Part | None = None

    @property
    def name(self) -> str:
        """Name in progress lines and in the log, the same for all parts of a kind."""
        adapt = self.phase.adapt
        if self.part is None or adapt is None:
            return self.phase.name
        return f"{'tokenizer' if self.part.freezes else self.phase.name} with {adapt.kind}"

    @property
    def training(self) -> Training:
        """The schedule that the steps are taken from."""
        own, whole = None if self.part is None else self.part.training, self.phase.training
        return whole if own is None else replace(own, lanes=whole.lanes)

    @property
    def freezes(self) -> bool:
        return self.part is not None and self.part.freezes

    @property
    def carries(self) -> bool:
        """Whether optimiser, averages and batches go on from one stretch of the phase to the next."""
        return self.phase.adapt is not None and self.phase.adapt.carries

    def terms(self, objective: tuple[Term, ...]) -> tuple[Term, ...]:
        """The terms to train with, in a recipe with this objective."""
        own = self.phase.terms or objective
        if self.part is None:
            return own
        return (self.part.term,) if self.part.freezes else (self.part.term, *own)


@dataclass(kw_only=True, frozen=True)
class Recipe(Checked):
    """The parts of a method. If a phase has `terms`, they replace `objective`."""

    name: str = setting(about="Name of the recipe.", count=(1, None))
    about: str = setting(about="What it is, in one sentence.")
    paper: str = setting("", "Where the method comes from.")
    deviations: tuple[str, ...] = setting((), "Where it differs from the paper.")
    encoder: ItemEncoder | None = setting(None, "Makes item vectors; none: the tokenizer needs no vectors.")
    tokenizer: Tokenizer = setting(about="Makes codes from item vectors.")
    collisions: CollisionPolicy = setting(factory=Bucket, about="How to treat items with equal codes.")
    merges: Merges | None = setting(None, "Learns which neighbouring tokens to merge; none: no merges.")
    reading: Reading = setting(factory=ItemByItem, about="How a history becomes a sequence of tokens.")
    other_ids: tuple[IdSystem, ...] = setting((), "Further ids of every item, which are read and predicted as well.")
    generator: Generator = setting(about="Scores the next token after a history.")
    memory: Memory | None = setting(None, "Adds bonuses for followers and similar items; none: the network alone.")
    objective: tuple[Term, ...] = setting((), "Loss terms that the generator is trained with.")
    over: Over = setting(
        "vocabulary",
        "Tokens that probabilities are normalised over, in training and search: all, or only valid next tokens.",
        choices=("vocabulary", "children"),
    )
    decoder: Ranker = setting(factory=BeamSearch, about="Ranks items by the generator's scores.")
    schedule: tuple[Phase, ...] = setting((), "Phases of training, in order; empty: nothing to train.")

    @property
    def dense(self) -> DenseMatch | None:
        """The term that learns dense item vectors in addition to ids, if there is one."""
        return next((t for t in self._terms if isinstance(t, DenseMatch)), None)

    @property
    def _terms(self) -> tuple[Term, ...]:
        return tuple(t for terms in (self.objective, *(p.terms for p in self.schedule)) for t in terms)

    def check_together(self) -> None:
        if self.other_ids or isinstance(self.decoder, Mixed):
            self._check_other_ids()
        if isinstance(self.decoder, BeamFusion) and self.dense is None:
            raise ConfigError("decoder=fusion needs a term 'dense' in the objective", hint="set decoder=beam")
        closing = TimelineGenerator | EncoderDecoderGenerator
        if self.dense is not None and not isinstance(self.generator, closing):
            raise ConfigError(
                f"the term 'dense' does not work with generator={self.generator.kind}: the row after an id's last "
                "token would already have read the vector that it must predict",
                hint="set generator=timeline or generator=encoder-decoder",
            )
        if not isinstance(self.reading, ItemByItem):
            self._check_reading()
        if isinstance(self.generator, ParallelGenerator) != any(isinstance(term, AllCodes) for term in self._terms):
            raise ConfigError(
                "generator=parallel and the term all-codes need each other",
                hint="set objective.0=all-codes with generator=parallel, and next-token with all others",
            )
        if isinstance(self.decoder, ParallelScoring) and not isinstance(self.generator, ParallelGenerator):
            raise ConfigError("decoder=parallel-scoring needs generator=parallel", hint="set decoder=beam")
        if any(isinstance(term, NextToken) and term.soft_target for term in self._terms):
            self._check_soft_target()
        self._check_soft_input()
        self._check_alternating()

    def _check_soft_input(self) -> None:
        """Mixtures replace the members of a merged token, so its vector must contain them."""
        generator = self.generator
        soft = isinstance(generator, ReadsSoftly) and generator.soft_input > 0
        if soft and self.merges is not None and not getattr(generator, "compose", True):
            raise ConfigError(
                "generator.soft_input above 0 needs generator.compose=true where tokens are merged: the vector of a "
                "merged token must contain its members to be softened",
                hint="set generator.compose=true, generator.soft_input=0 or merges=null",
            )

    def _check_alternating(self) -> None:
        """Alignment reads the row that a generator makes of a history, which not all of them have."""
        without = EncoderDecoderGenerator | MaskedGenerator
        aligns = any(isinstance(phase.adapt, Alternating) and phase.adapt.aligns for phase in self.schedule)
        if aligns and isinstance(self.generator, without):
            raise ConfigError(
                f"schedule.adapt=alternating does not work with generator={self.generator.kind}: it has no row of a "
                "history to align with the next item",
                hint="set generator=timeline",
            )

    def _check_reading(self) -> None:
        """Parts that add something to every item that is read need one position per item."""
        wrong = {
            "other_ids": bool(self.other_ids),
            "merges=semantic-bpe": isinstance(self.merges, SemanticBPE),
            f"generator={self.generator.kind}": isinstance(self.generator, MaskedGenerator | SasRecGenerator),
            "the term 'dense'": self.dense is not None,
            "schedule.adapt": any(phase.adapt is not None for phase in self.schedule),
            "generator.soft_input": isinstance(self.generator, ReadsSoftly) and self.generator.soft_input > 0,
        }
        for name, used in wrong.items():
            if used:
                raise ConfigError(
                    f"{name} does not work with reading={self.reading.kind}: it needs items that are read one by one",
                    hint="set reading=item-by-item",
                )

    def _check_soft_target(self) -> None:
        """The mixture of an item's codes is a target among the codes that can begin an id."""
        if self.over != "children":
            raise ConfigError(
                f"objective.soft_target needs over=children, got over={self.over}", hint="set over=children"
            )
        if not (isinstance(self.generator, ReadsSoftly) and self.generator.soft_input):
            raise ConfigError(
                "objective.soft_target needs generator.soft_input: both use the same weights of codes",
                hint="set generator=timeline and generator.soft_input=8",
            )

    def item_tokenizer(self) -> ItemTokenizer:
        """The unfitted parts that make ids."""
        return ItemTokenizer(
            encoder=self.encoder,
            tokenizer=self.tokenizer,
            collisions=self.collisions,
            merges=self.merges,
            other_ids=self.other_ids,
        )

    def _check_other_ids(self) -> None:
        """Several ids per item need parts that read, predict and search all of them."""
        if isinstance(self.decoder, Mixed):
            self.decoder.shares(1 + len(self.other_ids))
        if self.over != "children":
            raise ConfigError(
                f"several ids per item need over=children, got over={self.over}", hint="set over=children"
            )
        if not isinstance(self.generator, TimelineGenerator):
            raise ConfigError(
                f"several ids per item do not work with generator={self.generator.kind}", hint="set generator=timeline"
            )
        if self.dense is not None or any(phase.adapt is not None for phase in self.schedule):
            raise ConfigError(
                "several ids per item do not work with the term 'dense' or with a phase that adapts codes",
                hint="set other_ids=, and decoder=beam or decoder=fusion",
            )

    def with_vectors(self, path: str | Path) -> Recipe:
        """A copy that reads item vectors from a file (see `capsid.encode.precomputed`) instead of making them."""
        if self.encoder is None:
            raise ConfigError(
                f"the recipe {self.name!r} makes ids without vectors", hint="choose another recipe, such as capsid"
            )
        own = PrecomputedEncoder(path=str(path))
        return replace(self, encoder=replace(self.encoder, item=own) if isinstance(self.encoder, Views) else own)

    def with_settings(self, settings: Iterable[str]) -> Recipe:
        """A copy with `part.field=value` settings applied."""
        recipe = self
        for text in settings:
            path, equals, value = text.partition("=")
            if not equals or not path:
                raise ConfigError(f"{text!r} is not a setting", hint="write part.field=value")
            recipe = override(recipe, path.strip(), value.strip(), _kinds_at(path.strip()))
        check_together(recipe)
        return recipe

    def to_dict(self) -> dict[str, Any]:
        return to_dict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any], kinds: Kinds | None = None) -> Recipe:
        """The recipe that `to_dict` described, also in release 0.1; `kinds` adds parts that are not built in."""
        return from_dict(cls, recipe_today(data), {**KINDS, **(kinds or {})})


KINDS: Kinds = {
    **ENCODERS,
    **TOKENIZERS,
    **TOKENIZER_PARTS,
    **COLLISIONS,
    **MERGES,
    **READINGS,
    **GENERATORS,
    **TERMS,
    **JOINT_TERMS,
    **RANKERS,
    Augment.kind: Augment,
    Training.kind: Training,
    Memory.kind: Memory,
    Phase.kind: Phase,
}

# Which kinds each field takes, so that a setting can only name a suitable part.
PLACES: dict[str, Kinds] = {
    "encoder": ENCODERS,
    "tokenizer": TOKENIZERS,
    "collisions": COLLISIONS,
    "merges": MERGES,
    "reading": READINGS,
    "other_ids.tokenizer": TOKENIZERS,
    "other_ids.collisions": COLLISIONS,
    "generator": GENERATORS,
    "memory": {Memory.kind: Memory},
    "decoder": RANKERS,
    "schedule.adapt": JOINT_TERMS,
}


def _kinds_at(path: str) -> Kinds:
    """The kinds allowed at a path; tuple indices in the path do not matter."""
    return PLACES.get(".".join(name for name in path.split(".") if not name.isdigit()), KINDS)
