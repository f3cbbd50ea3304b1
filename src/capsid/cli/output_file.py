"""The target of a verb's `--out`: standard output, a pipe or device, or a regular file.

An existing file is overwritten only with `force`. A file inside a run or another artifact is never overwritten, and a
pipe or device is never replaced by a file.
"""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

from capsid.base.storage.artifacts import enclosing_artifact, write_bytes
from capsid.errors import ArtifactError

STANDARD_OUTPUT = ("-", "/dev/stdout")


@dataclass(frozen=True)
class OutputFile:
    """Where text or bytes are written. `stream`: a pipe or a device such as /dev/null."""

    name: str
    printed: bool = False
    stream: bool = False

    @classmethod
    def check(cls, out: str, *, force: bool = False) -> OutputFile:
        """Reject a path that cannot or must not be written, before any work is done."""
        if out in STANDARD_OUTPUT:
            return cls(out, printed=True)
        try:
            about = os.stat(out)
        except FileNotFoundError:
            about = None
        except (OSError, ValueError) as error:
            raise ArtifactError(f"could not write {out}: {error}", hint="choose another --out") from None
        mode = about.st_mode if about else stat.S_IFREG
        if stat.S_ISCHR(mode) or stat.S_ISFIFO(mode):
            return cls(out, stream=True)
        if stat.S_ISDIR(mode):
            raise ArtifactError(f"{out} is a folder", hint="name a file, such as out.jsonl, or - to print")
        if not stat.S_ISREG(mode):
            raise ArtifactError(f"{out} is neither a file nor a pipe", hint="name a file, such as out.jsonl")
        inside = enclosing_artifact(Path(os.path.realpath(out)))
        if inside is not None:
            raise ArtifactError(f"{out} is inside {inside}, which is finished", hint="choose a path outside of it")
        if about is not None and about.st_size and not force:
            raise ArtifactError(f"{out} exists already", hint="choose another --out, or replace it with --force")
        return cls(out)

    def write(self, content: str | bytes) -> None:
        """Write text or bytes; a regular file is written whole or not at all."""
        data = content.encode() if isinstance(content, str) else content
        if self.printed:
            sys.stdout.write(data.decode())
        elif self.stream:
            try:
                with open(self.name, "wb") as file:
                    file.write(data)
            except BrokenPipeError:
                raise
            except OSError as error:
                raise ArtifactError(
                    f"could not write {self.name}: {error.strerror}", hint="choose another --out, or - to print"
                ) from None
        else:
            write_bytes(Path(self.name), data)
