"""SemanticBPE: learn which neighbouring tokens of an id to merge (CapsID,
arXiv 2605.05096, section 3.3).

Merges are decided once, on final ids, and apply to any id, including those of new items. The gate learns after the
tokenizer, or beside it. Variants are settings:
frequency only (`alpha=1,1`), meaning only (`alpha=0,0`), counts of users. The gate and torch are imported on demand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from capsid.base.randomness import child_seed
from capsid.base.run_options import CheckpointFile
from capsid.data.item_table import ItemTable
from capsid.errors import ConfigError, NotFittedError
from capsid.ids.merges import MergeTable
from capsid.ids.semantic_ids import SemanticIds
from capsid.progress import Progress, silent
from capsid.settings import Checked, setting
from capsid.tokenize.base import concatenated
from capsid.tokenize.capsules.pairs import Candidates, centre_profiles, find_candidates, item_profiles, with_cosines
from capsid.train.options import Training

# Weight and threshold move over the first half of training; then the gate trains on the final targets.
ANNEALED = 0.5
# A pair is merged where merging is more likely than not.
LEAST = 0.5


class Learnt(Protocol):
    """A gate that has learnt already."""

    def logits(self, pairs: Candidates, profiles_VD: np.ndarray) -> np.ndarray:
        """Logit of merging every pair."""


def gate_training() -> Training:
    """Takes seconds for a few thousand pairs."""
    return Training(steps=300, batch_size=1024, learning_rate=1e-2, weight_decay=0.0, ema=0.9, validate_every=100)


@dataclass(kw_only=True)
class SemanticBPE(Checked):
    """Pairs of neighbouring tokens, scored by frequency and by meaning, and a gate that learns which ones to merge.
    Each pass may use an equal share of the remaining merges."""

    kind: ClassVar[str] = "semantic-bpe"
    size: int = setting(256, "How many merges are learnt over all passes, at most.", least=1)
    passes: int = setting(1, "Passes over the ids; each pass can merge tokens made by earlier passes.", least=1)
    min_count: int = setting(20, "Pairs that occur less often are not candidates.", least=1)
    count: str = setting(
        "interactions", "What occurrences of a pair are counted in.", choices=("interactions", "users")
    )
    alpha: tuple[float, float] = setting(
        (1.0, 0.6), "Weight of frequency against meaning in a pair's score, at start and end.", least=0, most=1, count=2
    )
    theta: tuple[float, float] = setting(
        (0.90, 0.55), "Cosine above which the gate learns to merge a pair, at start and end.", least=-1, most=1, count=2
    )
    profile: str = setting("items", "Vectors that define a token's meaning.", choices=("items", "centres"))
    spare: bool = setting(
        False, "Whether eligible pairs that the gate keeps apart are stored too, so that a learnt bias can merge them."
    )
    beside: bool = setting(
        False, "Whether the gate learns beside the tokenizer (stage 1), from the pairs of every epoch, or afterwards."
    )
    weight: float = setting(0.2, "Weight of the gate's loss beside the tokenizer's (lambda_b, Eq. 10).", least=0)
    bias: float = setting(0.0, "Added to the gate's logits when ids are merged; above 0: more merges.")
    training: Training = setting(factory=gate_training, about="How the gate trains.")

    def check_together(self) -> None:
        if self.beside and (self.passes > 1 or self.profile != "items"):
            raise ConfigError(
                f"merges.beside=true needs merges.passes=1 and merges.profile=items, got {self.passes} and "
                f"{self.profile}: while the tokenizer trains there are no merged tokens and no centres",
                hint="set merges.beside=false",
            )

    @property
    def frequency_only(self) -> bool:
        """Whether pairs are chosen by frequency alone; if so, theta, the threshold on the cosine, is ignored."""
        return self.alpha == (1.0, 1.0)

    @property
    def table_(self) -> MergeTable:
        pairs = self.candidates_
        rows = np.flatnonzero(pairs.merge >= 0)
        rows = rows[np.argsort(pairs.merge[rows])]
        number, strength = pairs.number[rows], self.probability(pairs.logit[rows])
        for own in np.unique(number):
            # Nearly certain merges are already in order of score; a learnt bias could reorder them by rounding.
            strength[number == own] = np.minimum.accumulate(strength[number == own])
        table = MergeTable.of(self.first_, pairs.left[rows], pairs.right[rows], strength, number)
        return dataclasses.replace(table, least=LEAST) if len(table) else table

    def probability(self, logit: np.ndarray) -> np.ndarray:
        """The gate's pi_1, including its bias."""
        return 1.0 / (1.0 + np.exp(-(logit + self.bias + self.learnt_bias_)))

    def shifted(self, bias: float) -> SemanticBPE:
        """A copy whose gate bias, learnt in stage 2, is larger by `bias`: the weakest merges may become inactive, and
        with `spare` others active."""
        out = dataclasses.replace(self).load_state(self.state())
        out.learnt_bias_ = self.learnt_bias_ + bias
        return out

    def fit(
        self,
        ids: SemanticIds,
        table: ItemTable,
        *,
        centres_VD: np.ndarray | None = None,
        seed: int = 0,
        progress: Progress = silent,
        checkpoint: CheckpointFile | None = None,
        gate: Learnt | None = None,
    ) -> SemanticBPE:
        """Learn from the ids, vectors and training sequences of the table's items. `centres_VD` has a vector per token.
        A `gate` that has learnt beside the tokenizer only decides here. With a checkpoint, an interrupted fit resumes.
        Checkpoint files begin with its name and are removed at the end."""
        self.first_ = ids.layout.plain.vocabulary
        self.candidates_ = Candidates.none()
        self.learnt_bias_ = 0.0
        self.counts_ = np.bincount(table.sequences.values, minlength=len(ids)).astype(np.int64)
        files = []
        for number in range(1, self.passes + 1):
            work = None if checkpoint is None else checkpoint.beside(str(number))
            files += [work] if work is not None else []
            job = Pass(self, number, ids.with_merges(self.table_), table, progress, gate)
            found = job.learn(centres_VD, child_seed(seed, "merges", number), work)
            self.candidates_ = concatenated([self.candidates_, found])
            if not (found.merge >= 0).any():
                break
        for file in files:
            file.remove()
        return self

    def state(self) -> dict[str, np.ndarray]:
        """All candidates with their results, and each item's training count."""
        if not hasattr(self, "candidates_"):
            raise NotFittedError("the merges are not fitted", hint="call fit first")
        numbers = {"first": np.array(self.first_), "learnt_bias": np.array(self.learnt_bias_)}
        return {**vars(self.candidates_), "counts": self.counts_, **numbers}

    def load_state(self, state: dict[str, np.ndarray]) -> SemanticBPE:
        arrays = dict(state)
        self.first_, self.counts_ = int(arrays.pop("first")), arrays.pop("counts")
        self.learnt_bias_ = float(arrays.pop("learnt_bias", 0.0))
        self.candidates_ = Candidates(**arrays)
        return self


@dataclass(frozen=True, eq=False)
class Pass:
    """One pass over the ids, with the merges of earlier passes applied."""

    settings: SemanticBPE
    number: int
    ids: SemanticIds
    table: ItemTable
    progress: Progress
    gate: Learnt | None = None

    @property
    def room(self) -> int:
        """How many merges this pass may still learn."""
        left = self.settings.size - len(self.ids.layout.merges)
        return -(-left // (self.settings.passes - self.number + 1))

    def counted(self, centres_VD: np.ndarray | None) -> tuple[Candidates, np.ndarray]:
        """The frequent pairs with their cosines, and the meaning of every token."""
        s = self.settings
        pairs = find_candidates(
            self.ids.tokens, self.ids.layout, self.table.sequences, number=self.number, least=s.min_count, count=s.count
        )
        profiles_VD = self._profiles(centres_VD) if len(pairs) else np.zeros((0, 0))
        return with_cosines(pairs, profiles_VD) if len(pairs) else pairs, profiles_VD

    def learn(self, centres_VD: np.ndarray | None, seed: int, checkpoint: CheckpointFile | None) -> Candidates:
        """The frequent pairs with the gate's decisions."""
        s = self.settings
        pairs, profiles_VD = self.counted(centres_VD)
        if not len(pairs):
            self.progress.line(f"merges: no pair of neighbouring tokens occurs {s.min_count} times, so none is merged")
            return pairs
        fine = self._eligible(pairs, 1.0)
        if not fine.any():
            self.progress.line(
                f"merges: none of {len(pairs):,} pairs has a cosine above {s.theta[1]:g}, so none is merged"
            )
            return pairs
        if self.gate is not None:
            logit = self.gate.logits(pairs, profiles_VD)
        else:
            # Imported here because the gate needs torch.
            from capsid.tokenize.capsules.gate import train_gate

            logit = train_gate(
                pairs,
                profiles_VD,
                self.teacher(pairs),
                s.training,
                seed=seed,
                checkpoint=checkpoint,
                progress=self.progress,
            )
        pairs = pairs.decided(logit, self._wanted(pairs, 1.0), self._chosen(pairs, logit, fine))
        self.progress.line(
            f"merges: {len(pairs):,} pairs occur {s.min_count} or more times, {int(fine.sum()):,} are eligible, "
            f"{int(((pairs.merge >= 0) & (s.probability(logit) > LEAST)).sum()):,} are merged"
        )
        return pairs

    def _profiles(self, centres_VD: np.ndarray | None) -> np.ndarray:
        if self.settings.profile == "centres":
            if centres_VD is None:
                raise ConfigError("the tokenizer has no centres for merges", hint="set merges.profile=items")
            return centre_profiles(self.ids.layout, centres_VD)
        if "item" not in self.table.blocks:
            raise ConfigError("merges need item vectors", hint="set an encoder, or merges=null")
        return item_profiles(self.ids.tokens, self.ids.layout.vocabulary, self.table.vectors())

    def _eligible(self, pairs: Candidates, share: float) -> np.ndarray:
        """Pairs whose cosine is above theta after this share of training (CapsID, appendix A.2)."""
        if self.settings.frequency_only:
            return np.ones(len(pairs), dtype=bool)
        first, last = self.settings.theta
        return pairs.cosine > first + (last - first) * share

    def _wanted(self, pairs: Candidates, share: float) -> np.ndarray:
        """The eligible pairs with the best scores: the targets that the gate learns."""
        first, last = self.settings.alpha
        score = np.where(self._eligible(pairs, share), pairs.score(first + (last - first) * share), -np.inf)
        best = np.argsort(-score, kind="stable")[: self.room]
        out = np.zeros(len(pairs), dtype=bool)
        out[best[np.isfinite(score[best])]] = True
        return out

    def teacher(self, pairs: Candidates) -> Callable[[float], np.ndarray]:
        """The targets after a share of training."""
        final = self._wanted(pairs, 1.0)

        def wanted(share: float) -> np.ndarray:
            return final if share >= ANNEALED else self._wanted(pairs, share / ANNEALED)

        return wanted

    def _chosen(self, pairs: Candidates, logit: np.ndarray, fine: np.ndarray) -> np.ndarray:
        """Index in the table of merges for every stored pair, the largest pi_1 first; pi_1 > pi_0 merges."""
        pi = self.settings.probability(logit)
        order = np.lexsort([pairs.right, pairs.left, -pairs.score(self.settings.alpha[1]), -pi])
        if self.settings.spare:
            # All eligible pairs: those that the gate keeps apart have tokens, which are not used yet.
            best = order[fine[order]]
        else:
            best = order[((pi > LEAST) & fine)[order]][: self.room]
        merge = np.full(len(pairs), -1, dtype=np.int64)
        merge[best] = len(self.ids.layout.merges) + np.arange(len(best))
        return merge
