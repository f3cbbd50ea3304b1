"""Semantic IDs of a whole catalogue from its shards of codes.

Which items have equal codes is settled once for the catalogue, in the process that starts the job; it holds the codes
of all items but no texts and no vectors. Tokens are then a map over the shards, and the trie is built from them.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from capsid.base.config import fingerprint, from_dict
from capsid.base.storage import untrusted
from capsid.base.storage.arrays import load_array, load_arrays
from capsid.base.storage.artifacts import file_hash, new_folder, read_json, write_bytes
from capsid.base.storage.parquet import SUMMARY, lists, ragged, read_about
from capsid.encode.base import fresh
from capsid.errors import ArtifactError, ConfigError, reason_of
from capsid.fit.tokenizers import open_parts
from capsid.ids.collisions import CollisionPolicy
from capsid.ids.layout import TokenLayout
from capsid.ids.merges import MergeTable
from capsid.ids.order import group_numbers
from capsid.ids.semantic_ids import prefix_free
from capsid.ids.trie import Trie
from capsid.progress import Progress
from capsid.ragged import Ragged
from capsid.scale.codes import CodeShards
from capsid.scale.shards import Shards, shard_file, shard_lock
from capsid.tokenize.base import tokenizer_key
from capsid.tokenize.item_tokenizer import KINDS, load_network

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES, TRIE = ".suffixes.npy", "trie"
ENCODE_AGAIN = "run `capsid vectors encode` again: it makes what is missing"


@dataclass(frozen=True)
class Settled:
    """What settling a catalogue found: items, the share of codes that collide, and tokens of its layout."""

    items: int
    collision_rate: float
    suffix_tokens: int
    vocabulary: int


@dataclass(frozen=True)
class CodeFolder:
    """A complete folder of shards of codes."""

    folder: Path
    files: dict[str, str]
    rows_per_shard: int
    items: int
    tokenizer: str
    key: str

    @classmethod
    def open(cls, folder: Path) -> CodeFolder:
        """Read `shards.json`, which exists if every shard does."""
        if not (folder / SUMMARY).is_file():
            raise ArtifactError(f"{folder} is not a finished folder of codes: it has no {SUMMARY}", hint=ENCODE_AGAIN)
        with untrusted.interpreting(folder / SUMMARY, "list of shards"):
            about = untrusted.mapping(read_json(folder / SUMMARY), SUMMARY)
            files = untrusted.mapping(about["files"], f"{SUMMARY}: files")
            per_shard, items = (untrusted.whole(about[n], n, least=1, most=2**62) for n in ("rows_per_shard", "items"))
            return cls(folder, files, per_shard, items, about["tokenizer"], file_hash(folder / SUMMARY))

    def read(self, number: int, columns: tuple[str, ...]) -> pa.Table:
        """Columns of a shard; a shard that is missing, cut off or made of other data is an error."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        name = f"{CodeShards.name}-{number:05d}.parquet"
        path, rows = self.folder / name, min(self.rows_per_shard, self.items - number * self.rows_per_shard)
        if not path.is_file():
            raise ArtifactError(f"the shard {path} is missing", hint=ENCODE_AGAIN)
        about = read_about(path)
        if about is None:
            raise ArtifactError(f"the shard {path} could not be read", hint=f"it may be truncated; {ENCODE_AGAIN}")
        if (about.get("tokenizer"), about.get("rows")) != (self.tokenizer, self.files.get(name)):
            raise ArtifactError(f"the shard {path} was made from other data than {SUMMARY} says", hint=ENCODE_AGAIN)
        try:
            found = pq.read_table(path, columns=list(columns), use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise ArtifactError(f"the shard {path} could not be read: {reason_of(error)}", hint=ENCODE_AGAIN) from None
        if found.num_rows != rows:
            raise ArtifactError(f"the shard {path} has {found.num_rows:,} rows, not {rows:,}", hint=ENCODE_AGAIN)
        return found

    def codes(self, number: int) -> Ragged:
        return ragged(self.read(number, ("codes",))["codes"])


@dataclass(frozen=True, eq=False)
class IdShards(Shards):
    """Columns item_id, codes and tokens (global ids, no end token)."""

    name: ClassVar[str] = "ids"
    beside: ClassVar[frozenset[str]] = frozenset({TRIE})
    codes: CodeFolder
    folder: Path
    layout: TokenLayout

    def size(self) -> tuple[int, int]:
        return self.codes.items, self.codes.rows_per_shard

    @cached_property
    def suffixes(self) -> np.ndarray | None:
        """The settled suffix of every item, mapped; None where the layout has none."""
        return load_array(self.folder / SUFFIXES, memory_map=True) if self.layout.suffix else None

    @cached_property
    def key(self) -> str:
        merges = {name: array.tolist() for name, array in self.layout.merges.state().items()}
        return fingerprint(self.layout.sizes, self.layout.suffix, merges if len(self.layout.merges) else {})

    def common(self) -> dict[str, Any]:
        return {"layout": self.key}

    def about(self, number: int) -> dict[str, Any]:
        """The layout, and the rows' codes and suffixes."""
        own = self._suffixes(number)
        files = self.codes.files.get(f"{CodeShards.name}-{number:05d}.parquet")
        digest = hashlib.sha256(f"{self.codes.tokenizer}{files}".encode())
        digest.update(b"" if own is None else np.ascontiguousarray(own).data)
        return {"layout": self.key, "rows": digest.hexdigest()[:32], "first": self.bounds(number)[0]}

    def table(self, number: int) -> pa.Table:
        import pyarrow as pa

        found = self.codes.read(number, ("item_id", "codes"))
        codes = ragged(found["codes"])
        tokens = self.layout.tokens(codes, self._suffixes(number))
        columns = {"item_id": found["item_id"], "codes": lists(codes, np.int32), "tokens": lists(tokens, np.int32)}
        return pa.table(columns)

    def summary(self) -> dict[str, Any]:
        layout = {"sizes": list(self.layout.sizes), "suffix": self.layout.suffix, "vocabulary": self.layout.vocabulary}
        return {**self.sizes(), **layout, "tokenizer": self.codes.tokenizer, "layout": self.key}

    def _suffixes(self, number: int) -> np.ndarray | None:
        start, stop = self.bounds(number)
        return None if self.suffixes is None else self.suffixes[start:stop]


@dataclass(frozen=True, eq=False)
class IdParts:
    """What ids are made with: the tokenizer's key, its codebook sizes, its collision policy and its merges."""

    key: str
    sizes: tuple[int, ...]
    policy: CollisionPolicy
    merges: MergeTable


def id_parts(tokenizer: Path) -> IdParts:
    """Read the parts from a tokenizer's or a run's folder, and none of its ids."""
    folder = open_parts(tokenizer, ("merges.npz",))
    network = load_network(folder)
    with untrusted.interpreting(folder, "tokenizer"):
        about = untrusted.mapping(read_json(folder / "tokenizer.json"), "tokenizer.json")
        policy: CollisionPolicy = from_dict(None, about["collisions"], KINDS)
        merges = MergeTable()
        if about.get("merges"):
            fitted = fresh(from_dict(None, about["merges"], KINDS)).load_state(load_arrays(folder / "merges.npz"))
            merges = fitted.table_
        return IdParts(tokenizer_key(network), tuple(network.sizes), policy, merges)


def settle(tokenizer: Path, codes: Path, out: Path, progress: Progress) -> Settled:
    """Settle equal codes of the whole catalogue, and leave the suffixes where workers find them.

    Refused while another process writes the ids of `out`: its workers read the same file of suffixes.
    """
    with shard_lock(out, (1, 1)):
        return _settled(tokenizer, codes, out, progress)


def _settled(tokenizer: Path, codes: Path, out: Path, progress: Progress) -> Settled:
    parts, source = id_parts(tokenizer), CodeFolder.open(codes)
    policy = parts.policy
    if source.tokenizer != parts.key:
        raise ArtifactError(f"the codes in {codes} were made by another tokenizer than {tokenizer}", hint=ENCODE_AGAIN)
    if policy.needs_costs:
        raise ConfigError(
            f"the collision policy {policy.kind!r} needs the vectors of colliding items, which shards of codes lack",
            hint="fit the tokenizer with --set collisions=suffix or collisions=bucket",
        )
    every = Ragged.join([source.codes(number) for number in range(len(source.files))])
    settled = policy.settle(every, parts.sizes)
    layout = TokenLayout(parts.sizes, policy.width(settled.suffixes), parts.merges)
    if layout.suffix:
        assert settled.suffixes is not None, "a policy with suffix tokens gives suffixes"
        buffer = io.BytesIO()
        np.save(buffer, settled.suffixes.astype(np.int32), allow_pickle=False)
        write_bytes(out / SUFFIXES, buffer.getvalue())
    distinct = int(group_numbers(every).max()) + 1 if len(every) else 0
    rate = 1.0 - distinct / max(len(every), 1)
    progress.line(f"ids: {len(every):,} items, {100 * rate:.2f} % of the codes collide, {layout.suffix} suffix tokens")
    return Settled(len(every), rate, layout.suffix, layout.vocabulary)


def build_trie(shards: Shards, progress: Progress) -> Trie:
    """The trie of all ids, from finished shards; it is stored beside them."""
    import pyarrow.parquet as pq

    files = (shard_file(shards, number) for number in range(shards.count))
    tokens = [ragged(pq.read_table(file, columns=["tokens"], use_threads=False)["tokens"]) for file in files]
    trie = Trie.build(prefix_free(Ragged.join(tokens)))
    with new_folder(shards.folder / TRIE, kind="trie") as folder:
        trie.save(folder)
    progress.line(f"ids: trie of {len(trie):,} items, {trie.nodes:,} nodes, {trie.nbytes / 1e6:,.0f} MB")
    return trie
