"""A device that is the CPU in disguise: real numbers, and the rules of a GPU.

Its tensors say that they are on torch's `meta` device and hold their numbers in a tensor of the CPU. As on a GPU, an
operation must not mix them with tensors of the CPU, and arrays have to be moved. Beyond that nothing may be made or
computed on the CPU at all, but for numbers that are drawn there with a generator and moved.
"""

from __future__ import annotations

import traceback
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")
aten = torch.ops.aten
# Operations that take tensors of both devices, on a GPU as well.
MOVES = {aten._to_copy.default, aten.copy_.default, aten.copy.default}
INDEXED = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}
# Looking at a tensor of the CPU on its way from or to an array.
LOOKS = {
    *(aten.detach.default, aten.view.default, aten.view.dtype, aten._unsafe_view.default, aten.alias.default),
    *(aten.clone.default, aten.slice.Tensor, aten.select.int, aten.as_strided.default, aten.is_pinned.default),
    *(aten.expand.default, aten.lift_fresh.default, aten.unsqueeze.default, aten.t.default, aten.transpose.int),
}


class There(Tensor):
    """A tensor of the other device."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> There:
        # torch cannot make inference tensors of such a class.
        with torch.inference_mode(False):
            made = Tensor._make_wrapper_subclass(
                cls, inner.size(), strides=inner.stride(), dtype=inner.dtype, device=DEVICE, requires_grad=False
            )
        made.inner = inner
        return made

    def __repr__(self, **_: Any) -> str:
        return f"There({self.inner})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copied = self.detach().clone()
        memo[id(self)] = copied
        return torch.nn.Parameter(copied, self.requires_grad) if isinstance(self, torch.nn.Parameter) else copied

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _there(func, args, kwargs or {})


class Elsewhere(TorchDispatchMode):
    """Watches all operations. `mistakes` names what was made or computed on the CPU, and by which line."""

    def __init__(self) -> None:
        super().__init__()
        self.mistakes: set[str] = set()
        self.made = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "profiler":
            return func(*args, **kwargs)
        # In inference mode compound operations arrive whole: watch their parts.
        if func._can_decompose():
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        tensors = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, Tensor)]
        if any(isinstance(t, There) for t in tensors):
            return _there(func, args, kwargs)
        if kwargs.get("device") == DEVICE:
            self.made += 1
            return There(func(*args, **{**kwargs, "device": torch.device("cpu")}))
        drawn = kwargs.get("generator") is not None
        if func not in LOOKS and func not in MOVES and not drawn:
            self.mistakes.add(f"{func} {_line()}")
        return func(*args, **kwargs)


def _there(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    flat = tree_flatten((args, kwargs))[0]
    mixed = [t for t in flat if isinstance(t, Tensor) and not isinstance(t, There)]
    if mixed and func not in MOVES and func not in INDEXED:
        raise AssertionError(f"{func} mixes devices: {_line()}")
    wraps = {id(t.inner): t for t in flat if isinstance(t, There)}
    inner_args, inner_kwargs = tree_map(lambda t: t.inner if isinstance(t, There) else t, (args, kwargs))
    to = kwargs.get("device")
    if to is not None:
        inner_kwargs["device"] = torch.device("cpu")
    out = func(*inner_args, **inner_kwargs)
    if to is not None and to != DEVICE:
        return out
    if func is aten.copy_.default and not isinstance(args[0], There):
        return args[0]
    # What was changed in place stays the same tensor.
    return tree_map(lambda t: (wraps[id(t)] if id(t) in wraps else There(t)) if isinstance(t, Tensor) else t, out)


def _line() -> str:
    """The innermost line of the library that led here."""
    frames = [f for f in traceback.extract_stack() if "/capsid/" in f.filename and "base/devices.py" not in f.filename]
    return f"{frames[-1].filename.partition('/capsid/')[2]}:{frames[-1].lineno}" if frames else "outside"
