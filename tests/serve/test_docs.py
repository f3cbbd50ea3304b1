"""The lines of the guide, run as they stand against a service of films by other names."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from served import Served
from small_recipes import world

GUIDE = Path(__file__).parents[2] / "docs" / "service.md"
# The guide's films, as items of the small world.
NAMES = {'"318"': '"i1"', '"858"': '"i2"', '"50"': '"i3"', "items/318": "items/i1"}


def lines() -> list[str]:
    text = GUIDE.read_text(encoding="utf-8")
    return [line for block in re.findall(r"```bash\n(.*?)```", text, re.S) for line in block.splitlines()]


@pytest.mark.skipif(shutil.which("curl") is None, reason="the guide shows curl")
def test_every_line_of_the_guide_works(run: Path, tmp_path: Path) -> None:
    assert len(lines()) == 13
    with Served(run, tmp_path / "state") as served:
        for line in lines():
            for theirs, ours in NAMES.items():
                line = line.replace(theirs, ours)
            command = line.replace("localhost:8000", f"localhost:{served.options.port}")
            done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            assert "error" not in json.loads(done.stdout), f"{command}: {done.stdout}"
        assert served.client.get("/v1/info").json()["version"] == 6
    assert world().items[1] == "i1"
