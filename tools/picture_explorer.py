"""Takes the pictures of the explorer page for README and docs: `docs/images/explorer-*.png` and `explanation.svg`.

    capsid demo                                   # writes runs/demo
    python tools/picture_explorer.py runs/demo

Serves the demo's best run beside the others and drives chromium, as the tests do (`make browser` installs it).
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "serve")]

from page_tools import CHROMIUM, DESK, PHONE, watched  # noqa: E402
from served import Served  # noqa: E402

IMAGES = ROOT / "docs" / "images"
SERVED, OTHERS = "capsid-bpe", ("rq-kmeans", "sasrec", "popularity")
HISTORY = ("260", "1196", "318")
ASKED = "&".join(f"h={item}" for item in HISTORY)
# Name, address, size and colours of each picture.
SHOTS = (
    ("catalogue", "catalogue", DESK, "light"),
    ("item", "item?id=260", DESK, "light"),
    ("recommend", f"recommend?{ASKED}&k=5&r=1", (1280, 960), "light"),
    ("compare", f"compare?{ASKED}", (1280, 900), "dark"),
    ("health", "health", DESK, "light"),
    ("phone", "catalogue", PHONE, "dark"),
)


def main(demo: Path) -> None:
    """Serve the demo's runs and take all pictures."""
    others = tuple(str(demo / name) for name in OTHERS if (demo / name).exists())
    with (
        tempfile.TemporaryDirectory() as state,
        Served(demo / SERVED, Path(state), compare=others) as server,
        sync_playwright() as tool,
    ):
        browser = tool.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name, address, size, scheme in SHOTS:
            with watched(browser, server.url, size=size, scheme=scheme) as seen:
                page = seen.open(f"#/{address}")
                page.wait_for_timeout(2_500 if name == "health" else 300)
                save(page.screenshot(), IMAGES / f"explorer-{name}.png")
        browser.close()
        told = server.service.snapshot.recommender.explain(list(HISTORY), k=5)
        (IMAGES / "explanation.svg").write_text(told.to_svg(), encoding="utf-8")


def save(picture: bytes, path: Path) -> None:
    """Few colours are enough for a page of flat colours, and make a third of the size."""
    small = Image.open(io.BytesIO(picture)).convert("RGB").quantize(255, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
    sys.stderr.write(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1024} KB\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
