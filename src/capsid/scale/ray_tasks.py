"""Shards as Ray tasks. Ray carries a job's text, a number and a short answer: no rows and no objects.

Ray itself retries the task of a worker or machine that died. On this machine it starts with a small object store, and
without dashboard and usage statistics.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from capsid.base.run_options import ONE_THREAD
from capsid.errors import CapsidError, ConfigError
from capsid.scale.jobs import run_shard

TRIES = 3
# Tasks that are handed over per worker: one runs, one waits, so that no worker idles.
AHEAD = 2
# The least that Ray allows; answers have some hundred bytes.
STORE_BYTES = 80 << 20
ANSWER_SECONDS = 5.0
START_HINT = "start one with `ray start --head`, or use --engine processes"
INSTALL_HINT = "pip install 'capsid-rec[scale]' -c constraints.txt"


class RayError(CapsidError):
    """Ray could not be reached, or gave up."""


def run_on_ray(job: str, numbers: Sequence[int], workers: int | None, address: str | None) -> Iterator[dict[str, Any]]:
    """The answers of `run_shard`, as they come."""
    with connected(workers, address) as ray:
        task = ray.remote(num_cpus=1, max_retries=TRIES)(run_shard)
        most = AHEAD * (workers or max(int(ray.cluster_resources().get("CPU", 1)), 1))
        left, waiting = iter(numbers), {}
        try:
            while True:
                for number in left:
                    waiting[task.remote(job, number)] = number
                    if len(waiting) >= most:
                        break
                if not waiting:
                    return
                (done,), _ = ray.wait(list(waiting), num_returns=1)
                yield _answer(ray, done, waiting.pop(done))
        finally:
            for reference in waiting:
                ray.cancel(reference, force=False)


def _answer(ray: Any, reference: Any, number: int) -> dict[str, Any]:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError:
        # A bug in a shard keeps its traceback.
        raise
    except ray.exceptions.RayError as error:
        said = str(error).strip().splitlines()
        raise RayError(
            f"Ray gave up on shard {number} after {TRIES} retries: {said[0][:200] if said else type(error).__name__}",
            hint="finished shards are kept: run the same command again",
        ) from None


@contextlib.contextmanager
def connected(workers: int | None, address: str | None) -> Iterator[Any]:
    """Ray, connected; disconnected afterwards unless the caller was connected already."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise ConfigError("the engine 'ray' needs Ray, which is not installed", hint=INSTALL_HINT) from None
    if address is not None:
        _check_address(address)
    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    options["runtime_env"] = {"env_vars": ONE_THREAD}
    if address is None:
        # Without "local", Ray joins a cluster that happens to run on this machine.
        options |= {"address": "local", "num_cpus": workers}
        options |= {"object_store_memory": STORE_BYTES, "include_dashboard": False}
    else:
        options["address"] = address
    _init(ray, options)
    try:
        yield ray
    finally:
        ray.shutdown()


def _init(ray: Any, options: dict[str, Any]) -> None:
    # Ray waits 30 seconds for its own processes. That may be too short on a busy machine, so a start is tried again.
    for last in (False, True):
        try:
            ray.init(**options)
            return
        except Exception as error:  # Ray raises anything, from ConnectionError to a plain Exception
            ray.shutdown()
            if options["address"] == "local" and not last:
                continue
            said = str(error).strip().splitlines()
            raise RayError(
                f"a Ray cluster does not answer at {options['address']!r:.100}: "
                f"{said[0][:200] if said else type(error).__name__}",
                hint=START_HINT,
            ) from None


def _check_address(address: str) -> None:
    """Refuse an address at which nobody listens: Ray itself would try for a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host and not port.isdigit():
        return  # a name such as auto, which Ray looks up
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ConfigError(f"--address must be HOST:PORT or auto, got {address!r:.100}", hint="such as 10.0.0.1:6379")
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS).close()
    except (OSError, UnicodeError) as error:
        raise RayError(
            f"a Ray cluster does not answer at {address!r:.100}: {getattr(error, 'strerror', None) or error}",
            hint=START_HINT,
        ) from None
