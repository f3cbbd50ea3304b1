"""Engines run the shards of a job: this process, processes on this machine, or Ray tasks on any number of machines.

An engine gets a job as text and the numbers of its shards, and hands out names, never rows. If a worker is killed,
another one repeats its shard; the others are not affected. Results arrive as they finish. Knows no concrete job.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from capsid.errors import ConfigError, nearest
from capsid.progress import Progress, silent
from capsid.scale.jobs import Job, job_text, opened, shard_done
from capsid.scale.processes import run_in_processes
from capsid.scale.shards import (
    Part,
    ShardDone,
    Shards,
    ShardsDone,
    check_folder,
    collect,
    numbers_of,
    shard_lock,
    write_shard,
)


class Engine(Protocol):
    """Makes shards somewhere."""

    kind: ClassVar[str]

    def map(self, job: str, numbers: Sequence[int]) -> Iterator[ShardDone]:
        """Make these shards; the first error stops the run and is raised."""


@dataclass(frozen=True)
class Here:
    """One shard after the other in this process."""

    kind: ClassVar[str] = "here"

    def map(self, job: str, numbers: Sequence[int]) -> Iterator[ShardDone]:
        shards = opened(job)
        try:
            for number in numbers:
                yield write_shard(shards, number)
        finally:
            # Whatever the job has loaded is not needed any more.
            opened.cache_clear()


@dataclass(frozen=True)
class Processes:
    """Processes of one thread each on this machine."""

    kind: ClassVar[str] = "processes"
    workers: int

    def map(self, job: str, numbers: Sequence[int]) -> Iterator[ShardDone]:
        return map(shard_done, run_in_processes(job, numbers, self.workers))


@dataclass(frozen=True)
class Ray:
    """Ray tasks: on the cluster at `address`, or on a cluster of this machine that ends with the run."""

    kind: ClassVar[str] = "ray"
    workers: int | None = None
    address: str | None = None

    def map(self, job: str, numbers: Sequence[int]) -> Iterator[ShardDone]:
        # Imported here: it needs the extra `scale`.
        from capsid.scale.ray_tasks import run_on_ray

        return map(shard_done, run_on_ray(job, numbers, self.workers, self.address))


ENGINES = (Here.kind, Processes.kind, Ray.kind)


def engine_named(name: str, *, workers: int | None = None, address: str | None = None) -> Engine:
    """The engine of that name; options that it does not have are errors."""
    if name not in ENGINES:
        raise ConfigError(f"there is no engine {name!r:.60}", hint=nearest(name[:60], ENGINES))
    if workers is not None and workers < 1:
        raise ConfigError(f"--workers must be at least 1, got {workers}", hint="such as --workers 4")
    if name == Here.kind and workers not in (None, 1):
        raise ConfigError(f"the engine 'here' has one worker, got --workers {workers}", hint="add --engine processes")
    if address is not None and name != Ray.kind:
        raise ConfigError(f"--address is for --engine ray, got --engine {name}", hint="add --engine ray")
    if name == Ray.kind:
        return Ray(workers, address)
    return Processes(workers or os.cpu_count() or 1) if name == Processes.kind else Here()


def run_job(
    job: Job, engine: Engine | None = None, *, part: Part = (1, 1), progress: Progress = silent
) -> tuple[Shards, ShardsDone]:
    """Make the shards of a job that are not there yet; returns the opened folder and what was done.

    `part` (i, n) takes every n-th shard beginning with the i-th. Which engine makes a shard does not change a byte.
    """
    shards, engine = job.open(), engine or Here()
    numbers = numbers_of(part, shards.count)
    check_folder(shards)
    with shard_lock(shards.folder, part):
        return shards, collect(shards, engine.map(job_text(job), numbers), progress, job.kind)
