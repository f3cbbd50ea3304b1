"""One file with everything that interrupted training needs to resume bit for bit; and the best weights so far.

A safetensors file. Its metadata holds the plain values, so tensors and counters always match, and a hash that detects
changed bytes. Written to a temporary sibling and renamed. Knows names and tensors, no network.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from capsid.errors import ArtifactError

CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The tensors by name and the plain values of the file at `path`."""

    path: Path
    tensors: Mapping[str, Tensor]
    values: Mapping[str, Any]

    def group(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin with `prefix/`, without that prefix."""
        return named_under(self.tensors, prefix)


def named_under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix/`, without that prefix."""
    return {name[len(prefix) + 1 :]: t for name, t in tensors.items() if name.startswith(prefix + "/")}


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Write the checkpoint atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The name is fixed, so the file of a killed process is overwritten.
    temporary = path.with_name(f".{path.name}.partial")
    try:
        whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        text = json.dumps(dict(values))
        save_file(whole, temporary, metadata={"values": text, "sha256": tensors_hash(whole, text)})
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        raise ArtifactError(f"could not write the checkpoint {path}: {error}", hint="is the disk full?") from error
    finally:
        temporary.unlink(missing_ok=True)


def load_checkpoint(path: Path, device: torch.device = CPU) -> Checkpoint | None:
    """Read a checkpoint to a device. None if the file does not exist, an error with a hint if it cannot be read."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors, text = {n: file.get_tensor(n) for n in file.keys()}, metadata["values"]  # noqa: SIM118
            if tensors_hash(tensors, text) != metadata["sha256"]:
                raise ValueError("it was changed after it was written")
            return Checkpoint(path, {n: t.to(device) for n, t in tensors.items()}, json.loads(text))
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise ArtifactError(f"the checkpoint {path} cannot be read: {error}", hint="delete it to start over") from error


def tensors_hash(tensors: Mapping[str, Tensor], values: str = "") -> str:
    """SHA-256 of tensors with their names, and of a text."""
    digest = hashlib.sha256(values.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu()
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


Weights = dict[str, Tensor]
# Metric of weights that were not validated; the next offer replaces them.
NEVER_VALIDATED = -math.inf


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Weights after a step, with their validation metric."""

    step: int
    metric: float
    weights: Weights


class Snapshots:
    """At most `most` snapshots, best first; ties keep the earlier one."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.kept: list[Snapshot] = []

    def offer(self, step: int, metric: float, weights: Callable[[], Weights]) -> None:
        """Keep the weights if they are among the best; `weights` is called only then."""
        self.kept = [s for s in self.kept if s.metric > NEVER_VALIDATED]
        place = sum(metric <= snapshot.metric for snapshot in self.kept)
        if place < self.most:
            self.kept.insert(place, Snapshot(step, metric, weights()))
            del self.kept[self.most :]

    def mean(self) -> Weights:
        """The mean of all snapshots; tensors that are not floats come from the best one."""
        best = self.kept[0].weights
        return {
            name: torch.stack([s.weights[name] for s in self.kept]).mean(0) if own.is_floating_point() else own
            for name, own in best.items()
        }

    def tensors(self) -> Weights:
        """All tensors, named for a file."""
        return {f"{_group(i)}/{n}": t.clone() for i, s in enumerate(self.kept) for n, t in s.weights.items()}

    def values(self) -> list[tuple[int, float]]:
        """Steps and metrics, for a file."""
        return [(s.step, s.metric) for s in self.kept]

    def restore(self, values: list[tuple[int, float]], group: Callable[[str], Mapping[str, Tensor]]) -> None:
        """Restore the snapshots of a file; `group` returns the tensors with a name prefix."""
        self.kept = [Snapshot(step, metric, dict(group(_group(i)))) for i, (step, metric) in enumerate(values)]


def _group(number: int) -> str:
    return "best" if number == 0 else f"best-{number}"
