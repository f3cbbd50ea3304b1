"""Chooses the device: inside `on_device` all tensors are created on one device, and arrays are moved to and from it.

Other modules name no device. They convert arrays with `torch.as_tensor`, because torch cannot intercept `from_numpy`.
On the CPU nothing is intercepted, so this costs nothing and changes no results. Random numbers of a CPU generator are
drawn on the CPU and moved, so that initial weights do not depend on the device.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from capsid.errors import ConfigError

CPU = torch.device("cpu")
# Functions that make tensors on a device of their choice.
MAKES = frozenset(
    {
        *(torch.empty, torch.zeros, torch.ones, torch.full),
        *(torch.arange, torch.linspace, torch.logspace, torch.eye, torch.scalar_tensor, torch.empty_strided),
        *(torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal),
        *(torch.tril_indices, torch.triu_indices),
    }
)
# Functions that take numbers from the memory of the CPU.
TAKES = frozenset({torch.tensor, torch.as_tensor, torch.asarray, torch.frombuffer})
# Methods that give memory of the CPU.
READS = frozenset({Tensor.numpy, Tensor.tolist, Tensor.__array__})
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
# glibc refuses a larger threshold: half of its largest heap.
_LARGEST_MMAP_THRESHOLD = 32 << 20


def choose(name: str) -> torch.device:
    """The device of a name: cpu, cuda, cuda:N, or auto, which is cuda where there is one.

    Under a launcher, cuda is the GPU with this process's number on its machine.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, colon, number = name.partition(":")
    if name == "cpu":
        return CPU
    if kind != "cuda" or (colon and not number.isdigit()):
        raise ConfigError(f"--device must be cpu, cuda, cuda:N or auto, got {name!r}", hint="such as --device cuda")
    if not torch.cuda.is_available():
        raise ConfigError(
            f"--device {name}: torch finds no GPU here", hint="use --device cpu, or install a torch built for CUDA"
        )
    index = int(number) if colon else int(os.environ.get("LOCAL_RANK", "0"))
    if index >= torch.cuda.device_count():
        raise ConfigError(
            f"--device {name}: there is no GPU {index}, torch finds {torch.cuda.device_count()}",
            hint="start at most one process per GPU",
        )
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


@contextmanager
def on_device(device: torch.device | str) -> Iterator[None]:
    """Make all tensors of this thread on a device until the end of the block."""
    chosen = torch.device(device)
    if chosen == CPU:
        yield
        return
    with _OnDevice(chosen):
        yield


class _OnDevice(TorchFunctionMode):
    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        source = kwargs.get("generator")
        if func in MAKES and kwargs.get("device") is None:
            if source is not None:
                return func(*args, **{**kwargs, "device": source.device}).to(self.device)
            return func(*args, **{**kwargs, "device": self.device})
        if func in TAKES and kwargs.get("device") is None:
            return func(*args, **kwargs).to(self.device)
        if func in READS:
            return func(args[0].cpu(), *args[1:], **kwargs)
        if source is not None and source.device != self.device:
            return _drawn(func, args, kwargs)
        return func(*args, **kwargs)


def _drawn(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Fill a tensor in place with numbers that are drawn on the CPU."""
    target = kwargs["tensor"] if "tensor" in kwargs else args[0]
    there = target.detach().cpu()
    if "tensor" in kwargs:
        func(*args, **{**kwargs, "tensor": there})
    else:
        func(there, *args[1:], **kwargs)
    with torch.no_grad():
        return target.copy_(there)


@functools.cache
def keep_freed_memory() -> bool:
    """Keep freed memory in the process, because fresh pages cost more time than small matrix products.

    glibc returns large freed blocks to the system at once. The next step of training or search then requests the same
    blocks, so every step would cause thousands of page faults. Returns whether malloc's thresholds could be set.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, 64 << 20))
    return all(mallopt(name, value) == 1 for name, value in settings)
