"""Plots of a tokenizer's report: lengths, stop causes, code usage, routing by rounds. Computes no figures itself."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from capsid.base.storage.artifacts import write_bytes
from capsid.errors import ArtifactError, ConfigError
from capsid.evaluate.tokenizer_quality import TokenizerQuality

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#8a8a8a", "#56b4e9", "#d55e00", "#000000")
# Codes of a depth are shown by share of their rank, so that codebooks of different sizes fill their rows.
COLUMNS = 256


@dataclass(frozen=True, eq=False)
class Pictures:
    """What is drawn. `use` has the number of ids for each code, by depth."""

    quality: TokenizerQuality
    use: tuple[np.ndarray, ...]


def write_plots(folder: Path, pictures: Pictures) -> list[Path]:
    """One SVG for each picture that this tokenizer has the numbers for."""
    if folder.exists() and not folder.is_dir():
        raise ArtifactError(f"{folder} is not a folder", hint="give --plots a folder; it is created if missing")
    out = []
    for name, data in render(pictures).items():
        write_bytes(folder / f"{name}.svg", data)
        out.append(folder / f"{name}.svg")
    return out


def render(pictures: Pictures, form: str = "svg") -> dict[str, bytes]:
    """The pictures by name."""
    quality = pictures.quality
    panels: dict[str, Callable[[Any, Pictures], None]] = {"lengths": _lengths, "usage": _usage}
    if quality.stop_causes is not None:
        panels["stop-causes"] = _stop_causes
    if quality.routing_convergence is not None:
        panels["routing-convergence"] = _convergence
    return {name: _drawn(draw, pictures, form) for name, draw in panels.items()}


def _drawn(draw: Callable[[Any, Pictures], None], pictures: Pictures, form: str) -> bytes:
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        hint = "pip install 'capsid-rec[plots]' -c constraints.txt"
        raise ConfigError("plots need a package that is missing: matplotlib", hint=hint) from None
    out = io.BytesIO()
    # Text of the SVG stays text, and equal numbers give equal bytes.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "capsid", "font.size": 9, "axes.titlesize": 11}):
        figure = Figure(figsize=(5.6, 3.6), layout="constrained")
        axis = figure.subplots()
        axis.spines[["top", "right"]].set_visible(False)
        draw(axis, pictures)
        figure.savefig(out, format=form, dpi=110, metadata={"Date": None} if form == "svg" else None)
    return out.getvalue()


def _lengths(axis: Any, pictures: Pictures) -> None:
    quality = pictures.quality
    lengths = list(range(1, max([*quality.length_histogram, len(pictures.use)]) + 1))
    counts = [quality.length_histogram.get(n, 0) for n in lengths]
    bars = axis.bar(lengths, counts, color=COLOURS[0])
    axis.bar_label(bars, [f"{c / max(quality.items, 1):.1%}" for c in counts], padding=2, fontsize=8)
    axis.margins(y=0.1)
    axis.set_xticks(lengths)
    axis.set_xlabel("codes per id")
    axis.set_ylabel("items")
    axis.set_title(f"Length of the ids (mean {quality.mean_length:.2f})")


def _stop_causes(axis: Any, pictures: Pictures) -> None:
    causes = pictures.quality.stop_causes or {}
    names = {
        "confidence": "confident",
        "residual": "small residual",
        "cap": "maximum length",
        "prefix": "prefix free",
    }
    labels = [f"{cause}\n({names[cause]})" for cause in causes]
    bars = axis.bar(labels, list(causes.values()), color=COLOURS[: len(causes)])
    axis.bar_label(bars, [f"{share:.1%}" for share in causes.values()], padding=2, fontsize=8)
    axis.set_ylim(0, max([*causes.values(), 0.01]) * 1.12)
    axis.set_ylabel("share of the ids")
    axis.set_title("Why ids end")


def _usage(axis: Any, pictures: Pictures) -> None:
    from matplotlib.colors import LogNorm

    rows = []
    for counts_K in pictures.use:
        even = max(counts_K.sum() / len(counts_K), 1e-12)
        sorted_K = np.sort(counts_K)[::-1] / even
        rows.append(sorted_K[np.arange(COLUMNS) * len(sorted_K) // COLUMNS])
    use_LC = np.array(rows)
    image = axis.imshow(
        np.ma.masked_equal(use_LC, 0.0),
        aspect="auto",
        interpolation="nearest",
        cmap="RdBu_r",
        norm=LogNorm(vmin=0.1, vmax=10.0),
        extent=(0, 100, len(rows) + 0.5, 0.5),
    )
    axis.set_facecolor("#222222")
    axis.set_yticks(range(1, len(rows) + 1))
    axis.set_ylabel("depth")
    axis.set_xlabel("codes of a depth, most used first (%); dark: used by no id")
    bar = axis.figure.colorbar(image, ax=axis, extend="both", ticks=[0.1, 0.3, 1, 3, 10])
    bar.ax.minorticks_off()
    bar.ax.set_yticklabels(["0.1", "0.3", "1", "3", "10"])
    bar.set_label("ids of a code / even share")
    axis.set_title("Use of the codes")


def _convergence(axis: Any, pictures: Pictures) -> None:
    found = pictures.quality.routing_convergence
    assert found is not None
    for depth, colour in zip(range(len(found.winner_mass[0])), COLOURS * 8):
        label = f"depth {depth + 1}"
        axis.plot(found.rounds, [row[depth] for row in found.winner_mass], "o-", ms=4, color=colour, label=label)
        axis.plot(found.rounds, [row[depth] for row in found.same_token], "s--", ms=4, color=colour, mfc="white")
    axis.set_xticks(found.rounds)
    axis.set_xlabel(f"rounds of agreement ({found.items:,} items)")
    axis.set_ylim(0, 1.03)
    axis.set_ylabel("share")
    axis.set_title("Routing by rounds")
    axis.plot([], [], "o-", ms=4, color="#555", label="winner mass")
    axis.plot([], [], "s--", ms=4, color="#555", mfc="white", label="items with their\nfinal token")
    axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
