"""Puts a finished demo into the quickstart: its numbers, its picture and its output. Run it after `make demo`:

    python tools/update_demo_docs.py runs/demo

Runs `capsid demo` once more in that folder, which reuses its finished runs.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PEOPLE = 2


def main() -> None:
    """Update docs/quickstart.md, docs/results/demo and docs/images from the demo in the folder given."""
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo")
    command = [sys.executable, "-m", "capsid", "demo", "--out", str(out)]
    story = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    if story.count("fitted by an earlier demo") != 4:
        sys.exit(f"{out} held no finished demo; run `capsid demo --out {out}` first")
    table = story[story.index("\n4. ") : story.index("\n5. ")].strip()
    people = story[story.index("\n5. ") : story.index("\nreport: ")].strip().split("\n\n")[: PEOPLE + 1]
    shown = "\n\n".join([table, *people, "   ..."])
    block = "\n".join(f"    {line}".rstrip() for line in shown.splitlines())
    page = ROOT / "docs" / "quickstart.md"
    marked = re.compile(r"(<!-- demo -->\n).*?(<!-- /demo -->)", re.S)
    text, found = marked.subn(lambda m: f"{m[1]}\n{block}\n\n{m[2]}", page.read_text(encoding="utf-8"))
    if found != 1:
        sys.exit("docs/quickstart.md has no place marked for the demo")
    page.write_text(text, encoding="utf-8")
    (ROOT / "docs" / "results" / "demo").mkdir(parents=True, exist_ok=True)
    shutil.copy(out / "results.json", ROOT / "docs" / "results" / "demo" / "results.json")
    shutil.copy(out / "report.png", ROOT / "docs" / "images" / "demo.png")


if __name__ == "__main__":
    main()
