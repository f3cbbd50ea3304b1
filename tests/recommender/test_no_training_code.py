"""Loading a run and recommending with it loads no training code and no library that only fitting needs.

Most of the time of `capsid recommend` goes into imports, so counting modules replaces a timed test.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from small_recipes import small, tiny_world

from capsid.recommender import Recommender

SCRIPT = """
import sys
from capsid import Recommender
recommender = Recommender.from_pretrained(sys.argv[1])
recommender.recommend(list(recommender.catalogue_.items)[:2], k=3)
print(*sys.modules)
"""
TRAINING = {
    "capsid.train.loop",
    "capsid.train.batches",
    "capsid.train.checkpoint",
    "capsid.fit",
    "capsid.generate.fit",
}
# torch._dynamo alone takes as long as everything else that a recommendation needs.
HEAVY = {
    "torch._dynamo",
    "torch._inductor",
    "sympy",
    "faiss",
    "scipy",
    "pandas",
    "matplotlib",
    "transformers",
}


@pytest.mark.parametrize("name", ["capsid-bpe", "tiger", "sasrec"])
def test_a_loaded_run_recommends_without_training_code(name: str, tmp_path: Path) -> None:
    Recommender(small(name, 4)).fit(tiny_world()).save_pretrained(tmp_path / "run")
    done = subprocess.run([sys.executable, "-c", SCRIPT, tmp_path / "run"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "capsid.recommender" in loaded
    assert loaded & TRAINING == set()
    assert loaded & HEAVY == set()
