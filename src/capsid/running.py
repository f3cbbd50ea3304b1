"""How to run a fit, apart from what to fit: no result depends on it, so it is part of no recipe and no fingerprint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from capsid.settings import check_settings, setting


@dataclass(frozen=True)
class CheckpointFile:
    """Where a training keeps what it needs to resume, and after how many seconds it writes that again."""

    path: Path
    every: float

    def beside(self, ending: str) -> CheckpointFile:
        """The file of another training that belongs to the same fit."""
        return CheckpointFile(self.path.with_name(f"{self.path.name}.{ending}"), self.every)

    def remove(self) -> None:
        """Delete the file if it is there."""
        self.path.unlink(missing_ok=True)


@dataclass(kw_only=True, frozen=True)
class RunOptions:
    """What a user may choose anew every time the same work is started or resumed."""

    checkpoint_every: float = setting(60.0, "Seconds of training from one checkpoint to the next.", least=0)

    def __post_init__(self) -> None:
        check_settings(self)

    def checkpoint(self, path: Path) -> CheckpointFile:
        """A checkpoint at that place."""
        return CheckpointFile(path, self.checkpoint_every)
