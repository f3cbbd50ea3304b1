"""Options of a run that do not affect its results, so they are not part of recipes or fingerprints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from capsid.settings import check_settings, setting


@dataclass(frozen=True)
class CheckpointFile:
    """Where training saves its checkpoint, and every how many seconds."""

    path: Path
    every: float

    def beside(self, ending: str) -> CheckpointFile:
        """The checkpoint file of another training of the same fit."""
        return CheckpointFile(self.path.with_name(f"{self.path.name}.{ending}"), self.every)

    def remove(self) -> None:
        """Delete the file if it is there."""
        self.path.unlink(missing_ok=True)


@dataclass(kw_only=True, frozen=True)
class RunOptions:
    """Options that may differ each time the same fit is started or resumed."""

    checkpoint_every: float = setting(60.0, "Seconds of training between checkpoints.", least=0)

    def __post_init__(self) -> None:
        check_settings(self)

    def checkpoint(self, path: Path) -> CheckpointFile:
        """A checkpoint file at `path`."""
        return CheckpointFile(path, self.checkpoint_every)
