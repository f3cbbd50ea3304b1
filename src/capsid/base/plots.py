"""Figures as bytes. matplotlib is loaded when it is needed. Knows no results."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from capsid.errors import ConfigError

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#8a8a8a", "#56b4e9", "#d55e00", "#000000")


def figure_bytes(
    draw: Callable[[Any], None], size: tuple[float, float], form: str = "svg", dpi: int = 110, **style: Any
) -> bytes:
    """The file of a figure that `draw` fills; `style` are settings of matplotlib with underscores for dots."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        hint = "pip install 'capsid-rec[plots]' -c constraints.txt"
        raise ConfigError("plots need a package that is missing: matplotlib", hint=hint) from None
    out = io.BytesIO()
    # Text of the SVG stays text, and equal numbers give equal bytes.
    fixed = {"svg.fonttype": "none", "svg.hashsalt": "capsid"}
    with rc_context(fixed | {name.replace("_", "."): value for name, value in style.items()}):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        figure.savefig(out, format=form, dpi=dpi, metadata={"Date": None} if form == "svg" else None)
    return out.getvalue()
