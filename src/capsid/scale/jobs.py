"""Jobs over a whole catalogue as plain values: JSON that names files, so that any process anywhere can do a shard.

A job holds no rows, tokenizers or networks, only their paths and the hashes that they must have. A worker opens a job
once and then makes the shards that it is asked for.
"""

from __future__ import annotations

import functools
import json
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from capsid import __version__
from capsid.base.config import from_dict, to_dict
from capsid.errors import ArtifactError, CapsidError, ConfigError, DataError
from capsid.progress import Progress
from capsid.scale.shards import ShardDone, Shards, write_shard

if TYPE_CHECKING:
    from capsid.scale.codes import CodeShards
    from capsid.scale.ids import IdShards, Settled
    from capsid.scale.ranked import RankShards
    from capsid.scale.texts import TextShards


class Job(Protocol):
    """A job's fields are plain values."""

    kind: ClassVar[str]

    def open(self) -> Shards:
        """The shards of the job."""


@dataclass(frozen=True, kw_only=True)
class EncodeJob:
    """Codes of all rows of a file of vectors. Workers load the tokenizer's network and nothing else of its folder."""

    kind: ClassVar[str] = "encode"
    tokenizer: str
    key: str
    vectors: str
    ids: str
    out: str
    rows_per_shard: int

    @classmethod
    def prepare(cls, tokenizer: Path, vectors: Path, out: Path, rows_per_shard: int, progress: Progress) -> EncodeJob:
        """Check the files once, and rewrite vectors that cannot be mapped."""
        from capsid.encode.large_vectors import open_vectors
        from capsid.fit.tokenizers import open_network
        from capsid.tokenize.base import tokenizer_key

        key = tokenizer_key(open_network(tokenizer))
        source = open_vectors(vectors, progress=progress)
        return cls(
            tokenizer=str(tokenizer.absolute()),
            key=key,
            vectors=str(source.vectors_file),
            ids=str(source.ids_path),
            out=str(out.absolute()),
            rows_per_shard=rows_per_shard,
        )

    def open(self) -> CodeShards:
        from capsid.encode.large_vectors import MappedVectors
        from capsid.fit.tokenizers import open_network
        from capsid.scale.codes import CodeShards

        source = MappedVectors.at(Path(self.vectors), Path(self.ids))
        shards = CodeShards(open_network(Path(self.tokenizer)), source, Path(self.out), self.rows_per_shard)
        if shards.key != self.key:
            raise ArtifactError(
                f"{self.tokenizer} is not the tokenizer that the job was started with",
                hint="every worker must see the same files; if the tokenizer was fitted again, start the job again",
            )
        return shards


@dataclass(frozen=True, kw_only=True)
class EmbedJob:
    """Text vectors of all items."""

    kind: ClassVar[str] = "embed"
    files: tuple[str, ...]
    id_column: str
    fields: tuple[str, ...]
    rows: int
    model: str
    max_tokens: int
    out: str
    rows_per_shard: int

    @classmethod
    def prepare(
        cls, items: Path, fields: tuple[str, ...], out: Path, *, model: str, max_tokens: int, rows_per_shard: int
    ) -> EmbedJob:
        """Check the items' columns and count the rows."""
        from capsid.scale.texts import ItemFiles

        source = ItemFiles.open(items, fields)
        if not source.rows:
            raise DataError(f"{items} has no rows", hint="every item needs a row")
        found = {"files": source.files, "id_column": source.id_column, "fields": source.fields, "rows": source.rows}
        how = {"model": model, "max_tokens": max_tokens, "rows_per_shard": rows_per_shard}
        return cls(**found, **how, out=str(out.absolute()))  # type: ignore[arg-type]

    def open(self) -> TextShards:
        from capsid.scale.texts import ItemFiles, TextShards

        source = ItemFiles(self.files, self.id_column, self.fields)
        how = (self.rows, self.model, self.max_tokens)
        return TextShards(source, *how, Path(self.out), self.rows_per_shard)


@dataclass(frozen=True, kw_only=True)
class IdsJob:
    """Tokens of all items from their shards of codes, settled before the job starts."""

    kind: ClassVar[str] = "ids"
    tokenizer: str
    codes: str
    codes_key: str
    out: str
    suffix: int

    @classmethod
    def prepare(cls, tokenizer: Path, codes: Path, out: Path, progress: Progress) -> tuple[IdsJob, Settled]:
        """Settle the catalogue; workers read the result."""
        from capsid.scale.ids import CodeFolder, settle

        settled = settle(tokenizer, codes, out, progress)
        paths = {"tokenizer": str(tokenizer.absolute()), "codes": str(codes.absolute()), "out": str(out.absolute())}
        return cls(**paths, codes_key=CodeFolder.open(codes).key, suffix=settled.suffix_tokens), settled

    def open(self) -> IdShards:
        from capsid.ids.layout import TokenLayout
        from capsid.scale.ids import CodeFolder, IdShards, id_parts

        codes = CodeFolder.open(Path(self.codes))
        if codes.key != self.codes_key:
            raise ArtifactError(f"the codes in {self.codes} changed after the job was started", hint="start it again")
        parts = id_parts(Path(self.tokenizer))
        return IdShards(codes, Path(self.out), TokenLayout(parts.sizes, self.suffix, parts.merges))


@dataclass(frozen=True, kw_only=True)
class RankJob:
    """The best items for every held-out user of a run."""

    kind: ClassVar[str] = "rank"
    run: str
    run_key: str
    split: str
    k: int
    filter_history: bool
    users: int
    out: str

    @classmethod
    def prepare(cls, run: Path, out: Path, *, split: str, k: int, filter_history: bool) -> RankJob:
        """Check the run once, and count the users."""
        from capsid.base.storage.artifacts import MANIFEST, file_hash
        from capsid.recommender import Recommender

        users = len(Recommender.from_pretrained(run).held_out(split))
        key = file_hash(run / MANIFEST)
        question: dict[str, Any] = {"split": split, "k": k, "filter_history": filter_history, "users": users}
        return cls(run=str(run.absolute()), run_key=key, out=str(out.absolute()), **question)

    def open(self) -> RankShards:
        from capsid.scale.ranked import RankShards

        question = (self.split, self.k, self.filter_history, self.users)
        return RankShards(Path(self.run), self.run_key, *question, Path(self.out))


@dataclass(frozen=True, kw_only=True)
class WaitJob:
    """Shards that only wait, to measure what an engine itself costs. Each writes an empty file."""

    kind: ClassVar[str] = "wait"
    out: str
    shards: int
    seconds: float

    def open(self) -> Shards:
        return _Waiting(Path(self.out), self.shards, self.seconds)


@dataclass(frozen=True)
class _Waiting(Shards):
    name: ClassVar[str] = "wait"
    folder: Path
    shards: int
    seconds: float

    def size(self) -> tuple[int, int]:
        return self.shards, 1

    def common(self) -> dict[str, Any]:
        return {"seconds": self.seconds}

    def about(self, number: int) -> dict[str, Any]:
        return {"seconds": self.seconds, "rows": str(number)}

    def table(self, number: int) -> Any:
        import pyarrow as pa

        time.sleep(self.seconds)
        return pa.table({"number": [number]})

    def summary(self) -> dict[str, Any]:
        return {"shards": self.shards}


JOBS: Mapping[str, type] = {job.kind: job for job in (EmbedJob, EncodeJob, IdsJob, RankJob, WaitJob)}


def job_text(job: Job) -> str:
    """A job for a worker, with the version of capsid that must do it."""
    return json.dumps({"capsid": __version__, "job": to_dict(job)})


def run_shard(text: str, number: int) -> dict[str, Any]:
    """Do one shard of a job; returns plain values: what was done, or the error."""
    try:
        return asdict(write_shard(opened(text), number))
    except CapsidError as error:
        said = {"error": error.message, "hint": error.hint, "code": error.exit_code, "host": socket.gethostname()}
        return {"number": number, **said}


@functools.lru_cache(maxsize=1)
def opened(text: str) -> Shards:
    """The shards of a job, opened once in a process."""
    asked = json.loads(text)
    if asked["capsid"] != __version__:
        raise ConfigError(
            f"the worker has capsid {__version__}, but the job was started with capsid {asked['capsid']}",
            hint="install the same version everywhere",
        )
    job: Job = from_dict(None, asked["job"], JOBS)
    return job.open()


class ShardError(CapsidError):
    """The error of a shard that another process did."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        elsewhere = answer.get("host") not in (None, socket.gethostname())
        where = f"worker on {answer['host']}: " if elsewhere else ""
        everywhere = "every worker must see the same files under the same paths" if elsewhere else None
        super().__init__(f"{where}{answer['error']}", hint=answer.get("hint") or everywhere)
        self.exit_code = int(answer.get("code", 1))


def shard_done(answer: Mapping[str, Any]) -> ShardDone:
    """What `run_shard` answered; raises if that was an error."""
    if "error" in answer:
        raise ShardError(answer)
    return ShardDone(int(answer["number"]), bool(answer["written"]), int(answer["items"]))
