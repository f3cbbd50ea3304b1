"""Several processes that train one network together, as a launcher such as torchrun starts them.

Carries tensors and plain values from process to process: gloo between CPUs, NCCL between GPUs. Knows no network.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from capsid.base.run_options import Alone, Team
from capsid.errors import CapsidError, ConfigError
from capsid.train.lanes import TreeSum

# What a launcher tells each process (torch's "env://" convention).
TOLD = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
CPU = torch.device("cpu")
# Sums travel in parts of this many numbers (16 MB), so that memory does not grow with the number of processes.
PART = 1 << 22


def launched() -> bool:
    """Whether a launcher such as torchrun started this process."""
    return all(name in os.environ for name in TOLD)


def backend(device: torch.device) -> str:
    """The library that carries tensors of this device from process to process."""
    return "nccl" if device.type == "cuda" else "gloo"


@contextlib.contextmanager
def joined(device: torch.device = CPU) -> Iterator[Team]:
    """The team that the launcher started; a team of one if none did, or if it started one process."""
    if not launched():
        yield Alone()
        return
    rank, size = (_number(name) for name in TOLD[:2])
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    if size == 1:
        yield Alone(restarts=restarts)
        return
    with _told(rank):
        store, _, _ = next(dist.rendezvous("env://", rank, size))
        # The launcher keeps its store when it starts killed processes again: addresses in it may be of the dead.
        own = dist.PrefixStore(f"capsid/{restarts}", store)
        dist.init_process_group(backend(device), store=own, rank=rank, world_size=size)
    try:
        yield Processes(rank, size, device, restarts)
    finally:
        dist.destroy_process_group()


@dataclass(frozen=True, eq=False)
class Processes:
    """This process among `size`; see `capsid.base.run_options.Team`. `device` is where tensors must be to travel."""

    rank: int
    size: int
    device: torch.device
    restarts: int = 0

    def gather(self, tensor: Tensor) -> Sequence[Tensor]:
        own = tensor.to(self.device).contiguous()
        out = [torch.empty_like(own) for _ in range(self.size)]
        with _told(self.rank):
            dist.all_gather(out, own)
        return [t.to(tensor.device) for t in out]

    def sum(self, tensor: Tensor) -> Tensor:
        for part in tensor.view(-1).split(PART):
            total = TreeSum()
            for other in self.gather(part):
                total.add(other)
            part.copy_(total.value())
        return tensor

    def broadcast(self, value: Any) -> Any:
        data = json.dumps(value).encode() if self.rank == 0 else b""
        length = torch.tensor([len(data)], device=self.device)
        with _told(self.rank):
            dist.broadcast(length, 0)
            text = torch.zeros(int(length), dtype=torch.uint8, device=self.device)
            if self.rank == 0:
                text.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
            dist.broadcast(text, 0)
        return json.loads(bytes(text.tolist()))

    def meet(self) -> None:
        self.gather(torch.zeros(1))


@contextlib.contextmanager
def _told(rank: int) -> Iterator[None]:
    """A lost connection as an error that says what to do."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        first = str(error).strip().partition("\n")[0][:200]
        raise CapsidError(
            f"process {rank} lost the other processes: {first}",
            hint="one of them ended, see its message; torchrun --max-restarts 3 starts all of them again",
        ) from error


def _number(name: str) -> int:
    text = os.environ[name]
    if not text.isdigit():
        raise ConfigError(f"the variable {name} must be a whole number, got {text!r}", hint="start with torchrun")
    return int(text)
