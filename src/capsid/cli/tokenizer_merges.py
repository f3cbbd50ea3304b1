"""Text output of `capsid tokenizer merges`, and of the merged tokens in `inspect`."""

from __future__ import annotations

from capsid.explain.answers import ItemInspection, Merges, ShownMerge, Subword


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
