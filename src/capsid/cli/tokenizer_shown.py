"""What `capsid tokenizer` shows: the report as a table and as plots, the routing of an item, merges, facets, drift."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from capsid.base.plots import COLOURS, figure_bytes
from capsid.base.storage.artifacts import write_bytes
from capsid.errors import ArtifactError
from capsid.evaluate.capsule_report import Drift, RoutingConvergence
from capsid.evaluate.tokenizer_quality import TokenizerQuality
from capsid.explain.answers import Facets, ItemInspection, Merges, ShownCapsule, ShownMerge, Subword

# Codes of a depth are shown by share of their rank, so that codebooks of different sizes fill their rows.
COLUMNS = 256


def merges_text(found: Merges) -> str:
    """One paragraph per merge."""
    tokens = found.tokens_an_item
    blocks = [f"{found.count:,} merges, {tokens.before:.3f} -> {tokens.after:.3f} tokens per item"]
    for m in found.merges:
        tiers = ", ".join(f"{name} {100 * share:.0f} %" for name, share in m.tiers.items())
        length = f"{m.tokens_before:.2f} -> {m.tokens_after:.2f} tokens"
        first = f"{_meaning(m)}  gate {m.strength:.3f}, cosine {m.cosine:.2f}, taken {m.taken:,} times"
        second = f"  {m.items:,} items ({tiers}), {length}"
        blocks.append("\n".join([first, second, *(f"    {e.item}  {e.title}" for e in m.examples)]))
    return "\n\n".join(blocks)


def subword_lines(about: ItemInspection) -> list[str]:
    """The codes behind each token of an item; empty without merges."""
    if about.unmerged is None or about.subwords is None:
        return []
    lines = [f"before merging: {' '.join(map(str, about.unmerged))}"]
    for s in about.subwords:
        what = _meaning(s) if s.codes else f"token {s.token} = suffix"
        lines.append(f"  {what}  {'merged' if s.merged else 'single'}, {s.items:,} items, taken {s.taken:,} times")
    return lines


def _meaning(about: ShownMerge | Subword) -> str:
    first, last = about.depth, about.depth + len(about.codes) - 1
    depths = f"depth {first}" if first == last else f"depths {first} to {last}"
    return f"token {about.token} = {' '.join(map(str, about.codes))} ({depths})"


def report_rows(quality: dict[str, Any]) -> list[list[str]]:
    """Name and value of every measure."""
    rows: list[tuple[str, Any]] = []
    for name, value in quality.items():
        if name == "reconstruction":
            rows += [(f"reconstruction {kind}", by_depth) for kind, by_depth in value.items()]
        elif name == "routing_convergence" and value is not None:
            rows += _convergence(value)
        elif name == "merges" and value is not None:
            rows += _merges(value)
        elif name == "others":
            continue
        else:
            rows.append((name.replace("_", " "), value))
    shown = [[name, _shown(value)] for name, value in rows]
    for number, other in enumerate(quality.get("others", ()), start=2):
        shown += [[f"id {number}: {name}", value] for name, value in report_rows(other)]
    return shown


def item_text(about: ItemInspection) -> str:
    """An item, its codes, how it was routed, and which items share its first codes."""
    lines = [f"{about.item}  {about.title}", f"codes   {_joined(about.codes)}", f"tokens  {_joined(about.tokens)}"]
    for number, other in enumerate(about.others, start=2):
        lines += [f"id {number}    {_joined(other['codes'])} (tokens {_joined(other['tokens'])})"]
    lines += subword_lines(about)
    for level in about.depths or ():
        lines += [
            "",
            f"depth {level.depth}: token {level.token} (code {level.code}), confidence {level.confidence:.3f}, "
            f"residual {level.residual.soft:.3f} soft, {level.residual.hard:.3f} hard",
            *map(_capsule, level.capsules),
        ]
    if about.stopped is not None:
        lines += ["", f"ends after {about.stopped.depth} ({about.stopped.cause}): {about.stopped.because}"]
    for prefix in about.prefixes:
        others = "1 other item shares" if prefix.items == 2 else f"{prefix.items - 1:,} other items share"
        lines += ["", f"{others} the codes {_joined(prefix.codes)}"]
        lines += [f"  {other.item}  {other.title}" for other in prefix.examples]
    return "\n".join(lines)


def facets_text(found: Facets) -> str:
    """Items of two facets, best first."""
    if not found.items:
        return f"no id is routed to two capsules at depth {found.depth}"
    return "\n\n".join(
        "\n".join([f"{about.item}  {about.title}", *map(_capsule, about.facets)]) for about in found.items
    )


def drift_text(drift: Drift) -> str:
    """One line per depth, and a summary."""
    lines = ["new items against the fit (median at fit -> of the new items, KS distance):"]
    confidences = [s for s in drift.shifts if s.name == "confidence"]
    residuals = [s for s in drift.shifts if s.name != "confidence"]
    for sure, left in zip(confidences, residuals):
        parts = [
            f"{s.name} {s.fitted['50%']:.3f} -> {s.new['50%']:.3f} ({s.median_shift:+.3f}), KS {s.ks:.2f}"
            for s in (sure, left)
        ]
        lines.append(f"  depth {sure.depth}: {'; '.join(parts)}")
    return "\n".join([*lines, drift.sentence()])


def _capsule(capsule: ShownCapsule) -> str:
    """Weight, code, size, words and examples of a capsule in one line."""
    words = ", ".join(capsule.words)
    examples = "; ".join(other.title for other in capsule.nearest)
    about = " | ".join(part for part in (words, examples) if part)
    return f"  {capsule.weight:.3f}  capsule {capsule.code} ({capsule.items:,} items)  {about}".rstrip()


def _joined(numbers: Iterable[int]) -> str:
    return " ".join(map(str, numbers))


def _convergence(value: dict[str, Any]) -> list[tuple[str, Any]]:
    rows = []
    for rounds, mass, same in zip(value["rounds"], value["winner_mass"], value["same_token"]):
        rows += [(f"routing, rounds {rounds}: winner mass", mass), (f"routing, rounds {rounds}: final token", same)]
    return [*rows, ("routing, items of the sample", value["items"])]


def _merges(value: dict[str, Any]) -> list[tuple[str, Any]]:
    rows = [(f"merges: {name.replace('_', ' ')}", v) for name, v in value.items() if name not in ("tokens", "tiers")]
    for name, tokens in [("all", value["tokens"]), *((n, t["tokens"]) for n, t in value["tiers"].items())]:
        for what in ("item", "interaction"):
            text = f"{tokens[f'{what}_before']:.4f} -> {tokens[f'{what}_after']:.4f}"
            rows.append((f"merges: tokens per {what}, {name}", text))
    for what, key in (("items with a merge", "merges"), ("interactions", "interactions")):
        rows.append((f"merges: {what}, by tier", {n: tier[key] for n, tier in value["tiers"].items()}))
    return rows


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, tuple | list):
        return "  ".join(_shown(v) for v in value)
    if isinstance(value, dict):
        return "  ".join(f"{k}: {_shown(v)}" for k, v in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)


def write_plots(folder: Path, quality: TokenizerQuality, use: Sequence[np.ndarray]) -> list[Path]:
    """One SVG for each picture that this tokenizer has the numbers for; `use` counts the ids of each code, by depth."""
    if folder.exists() and not folder.is_dir():
        raise ArtifactError(f"{folder} is not a folder", hint="give --plots a folder; it is created if missing")
    panels = {"lengths": partial(_lengths, quality, len(use)), "usage": partial(_usage, use)}
    if quality.stop_causes is not None:
        panels["stop-causes"] = partial(_stop_causes, quality.stop_causes)
    if quality.routing_convergence is not None:
        panels["routing-convergence"] = partial(_draw_routing, quality.routing_convergence)
    files = {folder / f"{name}.svg": draw for name, draw in panels.items()}
    for file, draw in files.items():
        write_bytes(file, figure_bytes(partial(_on_axis, draw), (5.6, 3.6), font_size=9, axes_titlesize=11))
    return list(files)


def _on_axis(draw: Callable[[Any], None], figure: Any) -> None:
    axis = figure.subplots()
    axis.spines[["top", "right"]].set_visible(False)
    draw(axis)


def _lengths(quality: TokenizerQuality, depths: int, axis: Any) -> None:
    lengths = list(range(1, max([*quality.length_histogram, depths]) + 1))
    counts = [quality.length_histogram.get(n, 0) for n in lengths]
    bars = axis.bar(lengths, counts, color=COLOURS[0])
    axis.bar_label(bars, [f"{c / max(quality.items, 1):.1%}" for c in counts], padding=2, fontsize=8)
    axis.margins(y=0.1)
    axis.set_xticks(lengths)
    axis.set_xlabel("codes per id")
    axis.set_ylabel("items")
    axis.set_title(f"Length of the ids (mean {quality.mean_length:.2f})")


def _stop_causes(causes: dict[str, float], axis: Any) -> None:
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


def _usage(use: Sequence[np.ndarray], axis: Any) -> None:
    from matplotlib.colors import LogNorm

    rows = []
    for counts_K in use:
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


def _draw_routing(found: RoutingConvergence, axis: Any) -> None:
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
