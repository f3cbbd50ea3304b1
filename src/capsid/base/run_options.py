"""How to run: options that do not affect results and so are not part of recipes or fingerprints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from capsid.settings import check_settings, setting

if TYPE_CHECKING:
    from torch import Tensor

# For processes that share a machine: on two cores, two of one thread are faster than one of two threads.
ONE_THREAD = {
    name: "1"
    for name in (
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "POLARS_MAX_THREADS",
        "RAYON_NUM_THREADS",
    )
} | {"TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True)
class CheckpointFile:
    """Where training saves its checkpoint, and every how many seconds."""

    path: Path
    every: float

    def beside(self, ending: str) -> CheckpointFile:
        """The checkpoint file of another training of the same fit."""
        return CheckpointFile(self.path.with_name(f"{self.path.name}.{ending}"), self.every)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


class Team(Protocol):
    """The processes that fit one method together. Process 0 makes the ids and writes all files.

    Every process must make the same calls in the same order.
    """

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""

    @property
    def size(self) -> int:
        """How many processes there are."""

    @property
    def restarts(self) -> int:
        """How many times the launcher has started the processes again."""

    def gather(self, tensor: Tensor) -> Sequence[Tensor]:
        """The tensors of all processes, in the order of their numbers; all have the same shape."""

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of the tensors of all processes, in an order that is always the same; may change its argument."""

    def broadcast(self, value: Any) -> Any:
        """The value of process 0: whatever JSON can hold. The values of the others are not read."""

    def meet(self) -> None:
        """Wait until every process has come here. For moments that all reach within minutes."""


@dataclass(frozen=True)
class Alone:
    """A team of one: nothing to exchange."""

    rank: int = 0
    size: int = 1
    restarts: int = 0

    def gather(self, tensor: Tensor) -> Sequence[Tensor]:
        return [tensor]

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor

    def broadcast(self, value: Any) -> Any:
        return value

    def meet(self) -> None:
        pass


ALONE = Alone()


@dataclass(kw_only=True, frozen=True)
class RunOptions:
    """Options that may differ each time the same fit is started or resumed."""

    checkpoint_every: float = setting(60.0, "Seconds of training between checkpoints.", least=0)
    team: Team = setting(ALONE, "The processes that train together.")
    device: str = setting("cpu", "Where tensors are made: cpu, cuda or cuda:N.", count=(1, None))
    validated: Callable[[float], None] | None = setting(None, "Called with every validation; may raise.")

    def __post_init__(self) -> None:
        check_settings(self)

    def checkpoint(self, path: Path) -> CheckpointFile:
        return CheckpointFile(path, self.checkpoint_every)
