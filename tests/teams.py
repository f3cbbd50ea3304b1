"""Teams of forked processes that meet at a file: no launcher, and nothing to import again."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from capsid.base.run_options import Team
from capsid.errors import CapsidError
from capsid.train.team import Processes

Work = Callable[[Team, Path], object]


def together(size: int, work: Work, folder: Path) -> list[dict]:
    """What `work` returns in each of `size` forked processes, or the error it raised."""
    folder.mkdir(exist_ok=True)
    context = multiprocessing.get_context("fork")
    started = [context.Process(target=_member, args=(rank, size, work, folder)) for rank in range(size)]
    for process in started:
        process.start()
    for process in started:
        process.join(240)
        if process.is_alive():
            process.kill()
            raise AssertionError("a process of the team waits for ever")
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]


def _member(rank: int, size: int, work: Work, folder: Path) -> None:
    import torch.distributed as dist

    said: dict[str, object] = {}
    try:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
        said["value"] = work(Processes(rank, size, torch.device("cpu")), folder)
    except CapsidError as error:
        said["error"] = str(error)
    except BaseException:
        said["crash"] = traceback.format_exc()
    (folder / f"{rank}.json").write_text(json.dumps(said))
    os._exit(0)


def hash_of(tensors: Mapping[str, Tensor]) -> str:
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in tensors.values())).hexdigest()
