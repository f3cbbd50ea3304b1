"""Loads weights from untrusted files: nothing is allocated that the file does not contain.

The network is first created without memory (torch's meta device), and its shapes are compared with the file's. Does not
know what the network is for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from capsid.errors import ArtifactError

N = TypeVar("N", bound=nn.Module)
HINT = "the weights and the stored settings belong to different fits, or were changed; fit again"
# Limit in bytes of tables that a network computes itself (positions, masks).
OWN_TABLES = 256 << 20
# Functions of torch.nn.init and methods of tensors that draw values in place.
DRAWN = frozenset({"normal_", "uniform_", "xavier_normal_", "xavier_uniform_", "kaiming_normal_", "kaiming_uniform_"})
SCALED = frozenset({"div", "mul", "__truediv__", "__mul__", "__rmul__"})


def load_weights(make: Callable[[], N], state: Mapping[str, Tensor]) -> N:
    """The network from `make` with these weights, in evaluation mode."""
    with torch.device("meta"), _NoValues():
        planned = make()
    wanted = {name: tuple(tensor.shape) for name, tensor in planned.state_dict().items()}
    given = {name: tuple(tensor.shape) for name, tensor in state.items()}
    for name in sorted(wanted.keys() | given.keys()):
        if wanted.get(name) != given.get(name):
            raise ArtifactError(
                f"the saved weights do not fit their settings: {name} is {_shape(given.get(name))} in the file and "
                f"{_shape(wanted.get(name))} by the settings",
                hint=HINT,
            )
    own = sum(t.numel() * t.element_size() for n, t in planned.named_buffers() if n not in wanted)
    if own > OWN_TABLES:
        raise ArtifactError(f"the settings require tables of {own:,} bytes in addition to the weights", hint=HINT)
    for name, tensor in state.items():
        if not torch.isfinite(tensor).all():
            raise ArtifactError(f"the saved weights {name} are not all finite numbers", hint=HINT)
    network = make()
    network.load_state_dict(dict(state))
    return network.eval()


class _NoValues(TorchFunctionMode):
    """Skips drawing and scaling initial values: a tensor without memory has none, only a shape.

    torch would load its compiler for that arithmetic, which takes longer than everything else about loading a run.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.randn, torch.rand):
            return torch.empty(*args, **{name: value for name, value in kwargs.items() if name != "generator"})
        name = getattr(func, "__name__", "")
        if name in DRAWN or (name in SCALED and isinstance(args[0], Tensor) and isinstance(args[1], float | int)):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def _shape(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else "a number" if not shape else " x ".join(f"{n:,}" for n in shape)
