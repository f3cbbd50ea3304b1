"""Puts the folder `benchmarks` on the path: the campaigns use its `common` and `_forked`. Imports nothing of capsid."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
RESULTS = Path(__file__).resolve().parent / "results"
