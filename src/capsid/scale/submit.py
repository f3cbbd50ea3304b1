"""Runs a job on an engine: checks the folder, makes the shards of one part, reports what was done."""

from __future__ import annotations

from capsid.progress import Progress, silent
from capsid.scale.engine import Engine, Here
from capsid.scale.jobs import Job, job_text
from capsid.scale.shards import Part, Shards, ShardsDone, check_folder, collect, numbers_of, shard_lock


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
