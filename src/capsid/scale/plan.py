"""Capacity planning: time, memory and disk of every stage of a large job, from measured rates. Runs nothing.

A stage in shards takes as many rounds of one shard as its workers need; any other stage takes its processor time.
Stages run one after the other, so times and disk add up and memory is that of the largest stage. With a GPU the speed
of networks is assumed, not measured, and the stage says so.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from capsid.errors import ConfigError

MB = 1_000_000
DEVICES = ("cpu", "cuda")
TEXTS = ("minilm", "own")
GENERATORS = ("timeline", "encoder-decoder")
SHARD_ROWS = 65_536
# Users of a shard of recommendations, and rows of the sample that capsules start from.
SHARD_USERS = 4_096
SAMPLE = 65_536
# Processes that share a training step: lanes of 8 sequences of a batch of 64.
MOST_RANKS = 8
# How many cores one GPU replaces where networks are the cost. An assumption: no GPU was measured.
CORES_PER_GPU = 50.0
# To start an engine or a process, and to load torch and a network.
START_SECONDS = 30.0
PROCESS, TEXT_MODEL = 400 * MB, 300 * MB
# An import: the process with a block of rows and a partition, and bytes per user or item (keys, counts, pages of ids).
IMPORT, IMPORT_ID_BYTES = 430 * MB, 52
# Bytes per interaction in stored histories (item and time), and in the sequences that training holds.
SEQUENCE_BYTES, TRAINING_BYTES = 12, 18
# Bytes per item: of ids and orders in a fit, of an item id, of the trie and of its making.
FIT_BYTES, ID_BYTES, TRIE_BYTES, BUILD_BYTES = 200, 25, 25, 85
# Bytes per parameter: of weights, and of weights with gradients, moments and an average.
WEIGHT_BYTES, LEARNING_BYTES = 4, 20
LISTED, LIST_BYTES = 10, 24


@dataclass(frozen=True)
class Growth:
    """Cost of a unit at K codes per depth and L depths: `each` + `depth` L + `codes` K L + `scores` K L L."""

    each: float = 0.0
    depth: float = 0.0
    codes: float = 0.0
    scores: float = 0.0

    def at(self, codes: int, depth: int) -> float:
        """The cost at these sizes."""
        return self.each + self.depth * depth + self.codes * codes * depth + self.scores * codes * depth * depth


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Processor seconds per unit, measured on one thread of an AMD EPYC at default settings, vectors of 128 numbers.

    The values are those of `benchmarks/results/rates.json` (`python benchmarks/rates.py`), but for `prepare` those of
    the largest runs in `interactions.json`, and for `ids` in `end_to_end.json`, which also read and write files. Bytes
    are those of `trie.json` and of files that the stages write. `capsid plan --measure` measures with small jobs.
    """

    prepare: float = 2.35e-06
    """Seconds per interaction: read, number, 5-core, sort, write as mapped histories."""
    text: float = 0.00618
    """Seconds per text of 26 tokens with MiniLM."""
    fit: Growth = Growth(codes=3.8e-07)
    """Seconds per row of the tokenizer's sample."""
    encode: Growth = Growth(each=1.28e-05, codes=3.16e-08)
    """Seconds per item."""
    ids: Growth = Growth(each=4.15e-06)
    """Seconds per item: reading codes, collisions, tokens, writing and trie."""
    train: Growth = Growth(depth=4.01e-05, scores=6.6e-09)
    """Seconds per interaction and epoch of the timeline generator."""
    train_t5: Growth = Growth(depth=0.000531)
    """The same of the encoder-decoder with a causal encoder."""
    rank: Growth = Growth(depth=0.000529, scores=2.89e-07)
    """Seconds per user, beam 50."""
    rank_t5: Growth = Growth(depth=0.00584, scores=4.65e-07)
    """The same with the encoder-decoder."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is planned: the data, the ids (`codes` per depth, at most `depth` of them), and what it runs on."""

    items: int
    interactions: int
    users: int
    codes: int = 256
    depth: int = 4
    dim: int = 128
    workers: int = 1
    device: str = "cpu"
    text: str = "minilm"
    generator: str = "timeline"
    epochs: int = 1

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and value < 1:
                raise ConfigError(f"{field.name} must be at least 1, got {value}", hint="give a positive whole number")
        for name, allowed in (("device", DEVICES), ("text", TEXTS), ("generator", GENERATORS)):
            if getattr(self, name) not in allowed:
                message = f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r:.40}"
                raise ConfigError(message, hint=f"such as {allowed[0]}")


@dataclass(frozen=True)
class Stage:
    """One stage. `memory_bytes` are those of all its processes together; `assumed`: the speed was not measured."""

    name: str
    seconds: float
    processor_seconds: float
    memory_bytes: int
    disk_bytes: int
    workers: int
    assumed: bool = False


@dataclass(frozen=True)
class Plan:
    """Stages in the order in which they run."""

    workload: Workload
    stages: tuple[Stage, ...]

    @property
    def seconds(self) -> float:
        """From the first stage to the last."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def processor_seconds(self) -> float:
        """Of all workers together."""
        return sum(stage.processor_seconds for stage in self.stages)

    @property
    def disk_bytes(self) -> int:
        """What all stages leave on disk."""
        return sum(stage.disk_bytes for stage in self.stages)

    @property
    def memory_bytes(self) -> int:
        """What the largest stage needs."""
        return max(stage.memory_bytes for stage in self.stages)

    @property
    def bottleneck(self) -> Stage:
        return max(self.stages, key=lambda stage: stage.seconds)

    def to_dict(self) -> dict[str, Any]:
        return {
            "workload": dataclasses.asdict(self.workload),
            "stages": [dataclasses.asdict(stage) for stage in self.stages],
            "seconds": self.seconds,
            "processor_seconds": self.processor_seconds,
            "memory_bytes": self.memory_bytes,
            "disk_bytes": self.disk_bytes,
            "bottleneck": self.bottleneck.name,
        }


def make_plan(work: Workload, rates: Rates | None = None) -> Plan:
    """The plan of a workload."""
    costs = _Costs(work, rates or Rates())
    stages = [costs.prepare(), costs.text() if work.text == "minilm" else None]
    stages += [costs.fit(), costs.encode(), costs.ids(), costs.train(), costs.recommend()]
    return Plan(work, tuple(stage for stage in stages if stage is not None))


@dataclass(frozen=True)
class _Costs:
    work: Workload
    rates: Rates

    def prepare(self) -> Stage:
        """One process, which holds a block of rows, a partition and some bytes per user and item."""
        count, ids = self.work.interactions, self.work.items + self.work.users
        memory, disk = IMPORT + IMPORT_ID_BYTES * ids, SEQUENCE_BYTES * count + ID_BYTES * ids
        return self._whole("prepare", self.rates.prepare * count, memory, disk)

    def text(self) -> Stage:
        """A pure map over items."""
        memory, disk = PROCESS + TEXT_MODEL, 4 * self.work.dim * self.work.items
        return self._shards("text vectors", self.work.items, SHARD_ROWS, self.rates.text, memory, disk)

    def fit(self) -> Stage:
        """A sample, and one pass over all items that counts prefixes."""
        work, rates = self.work, self.rates
        cost = min(work.items, SAMPLE) * rates.fit.at(work.codes, work.depth)
        cost += work.items * rates.encode.at(work.codes, work.depth)
        memory = PROCESS + 8 * work.dim * min(work.items, SAMPLE) + FIT_BYTES * work.items + self._tokenizer()
        return self._whole("tokenizer fit", cost, memory, self._tokenizer(), network=True)

    def encode(self) -> Stage:
        """A pure map over items; a worker maps the vectors and holds one shard."""
        work = self.work
        per_item = self.rates.encode.at(work.codes, work.depth)
        memory = PROCESS + self._tokenizer() + SHARD_ROWS * (4 * work.dim + 16 * work.depth)
        disk = work.items * (ID_BYTES + 8 * work.depth)
        return self._shards("encode", work.items, SHARD_ROWS, per_item, memory, disk)

    def ids(self) -> Stage:
        """Collisions and the trie see all ids at once."""
        work = self.work
        memory = PROCESS + work.items * (BUILD_BYTES + ID_BYTES + 4 * work.depth)
        disk = work.items * (ID_BYTES + TRIE_BYTES + 4 * work.depth)
        return self._whole("ids and trie", work.items * self.rates.ids.at(work.codes, work.depth), memory, disk)

    def train(self) -> Stage:
        """Epochs over all interactions; processes share each step."""
        work = self.work
        rate = self.rates.train if work.generator == "timeline" else self.rates.train_t5
        cost = work.epochs * work.interactions * rate.at(work.codes, work.depth)
        ranks = min(work.workers, MOST_RANKS)
        memory = ranks * (PROCESS + LEARNING_BYTES * self._parameters() + TRAINING_BYTES * work.interactions)
        speed = self._speed()
        disk = WEIGHT_BYTES * self._parameters()
        return Stage(
            "train generator", cost / speed / ranks + START_SECONDS, cost / speed, memory, disk, ranks, speed > 1
        )

    def recommend(self) -> Stage:
        """Ten items for every user, beam 50; workers of a machine share the mapped trie."""
        work = self.work
        rate = self.rates.rank if work.generator == "timeline" else self.rates.rank_t5
        memory = PROCESS + WEIGHT_BYTES * self._parameters()
        disk, shared = LISTED * LIST_BYTES * work.users, (TRIE_BYTES + ID_BYTES) * work.items
        per_user = rate.at(work.codes, work.depth)
        return self._shards("recommend", work.users, SHARD_USERS, per_user, memory, disk, shared=shared)

    def _speed(self) -> float:
        return CORES_PER_GPU if self.work.device == "cuda" else 1.0

    def _tokenizer(self) -> int:
        """Centres and pose matrices."""
        return 4 * self.work.depth * (self.work.codes * self.work.dim + self.work.dim**2)

    def _parameters(self) -> int:
        """Token embeddings, and the layers at default sizes (128 wide)."""
        return 128 * self.work.codes * self.work.depth + (600_000 if self.work.generator == "timeline" else 4_500_000)

    def _whole(self, name: str, cost: float, memory: int, disk: int, *, network: bool = False) -> Stage:
        """A stage of one process."""
        speed = self._speed() if network else 1.0
        return Stage(name, cost / speed + START_SECONDS, cost / speed, memory, disk, 1, speed > 1)

    def _shards(
        self, name: str, rows: int, most: int, per_row: float, memory: int, disk: int, *, shared: int = 0
    ) -> Stage:
        """A stage of shards of `most` rows, each as long as a full one; `memory` is that of one worker."""
        speed, shards = self._speed(), -(-rows // most)
        workers = min(self.work.workers, shards)
        rounds = -(-shards // workers)
        seconds = rounds * min(rows, most) * per_row / speed + START_SECONDS
        return Stage(name, seconds, rows * per_row / speed, workers * memory + shared, disk, workers, speed > 1)
