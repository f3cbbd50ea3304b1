"""The house rules hold in src/capsid, and each rule finds a planted violation."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import import_rules as rules
import pytest

SOURCE = Path(__file__).parents[2] / "src" / "capsid"
Rule = Callable[[rules.Modules], list[str]]

# rule -> trees that break it; a tree maps a path to source text.
PLANTED: dict[Rule, list[dict[str, str]]] = {
    rules.imports_go_down: [
        {"data/a.py": "from capsid.train.loop import fit", "train/loop.py": ""},
        {"data/a.py": "import capsid.ids.trie", "ids/trie.py": ""},
        {"ids/trie.py": "from capsid.data import a", "data/a.py": ""},
        {"errors.py": "from capsid.data.a import x", "data/a.py": ""},
        {"evaluate/a.py": "def f():\n    from capsid.recommender import Recommender", "recommender.py": ""},
        {"train/a.py": "import importlib\nimportlib.import_module('capsid.cli.main')", "cli/main.py": ""},
        {"bench/a.py": "from capsid.serve.b import c", "serve/b.py": ""},
        {
            "recipe.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from capsid.cli import a",
            "cli/a.py": "",
        },
        {"utils.py": "x = 1"},
    ],
    rules.no_cycles: [
        {"data/a.py": "from capsid.data.b import x", "data/b.py": "import capsid.data.a"},
        {"data/a.py": "from capsid.data.b import x", "data/b.py": "def f():\n    from capsid.data.a import y"},
        {
            "data/a.py": "import capsid.data.b",
            "data/b.py": "import capsid.data.c",
            "data/c.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from capsid.data.a import A",
        },
    ],
    rules.no_relative_imports: [{"data/a.py": "from . import b"}, {"data/a.py": "from ..errors import DataError"}],
    rules.without_torch: [
        {"ids/trie.py": "import torch"},
        {"ids/trie.py": "def f():\n    from torch import nn"},
        {"ids/trie.py": "from capsid.ragged import Ragged", "ragged.py": "import torch.nn as nn"},
        {"ids/trie.py": "", "ids/__init__.py": "from capsid.base.rng import seed", "base/rng.py": "import torch"},
        {"evaluate/metrics.py": "from capsid.evaluate.run import x", "evaluate/run.py": "import torch"},
    ],
    rules.ids_need_numpy_only: [{"ids/trie.py": "import polars as pl"}],
    rules.decode_knows_no_network: [
        {"decode/beam.py": "from capsid.generate.network import Network", "generate/network.py": ""},
        {"decode/beam.py": "def f():\n    import capsid.generate", "generate/__init__.py": ""},
    ],
    rules.serve_reaches_no_training: [
        {"serve/app.py": "def f():\n    from capsid.train import loop", "train/loop.py": ""},
        {
            "serve/app.py": "from capsid.recommender import Recommender",
            "recommender.py": "from capsid.train.loop import fit",
            "train/loop.py": "",
        },
    ],
    rules.recommending_loads_no_training: [
        {
            "recommender.py": "from capsid.generate.a import x",
            "generate/a.py": "import capsid.train.loop",
            "train/loop.py": "",
        },
        {"stored.py": "from capsid.fit import schedule", "fit/schedule.py": ""},
    ],
    rules.heavy_libraries_late: [
        {"encode/text.py": "import sentence_transformers"},
        {"cli/a.py": "from fastapi import FastAPI"},
        {"cli/a.py": "from capsid.serve import b", "serve/b.py": "import fastapi"},
        {"encode/text.py": "try:\n    from transformers import AutoModel\nexcept ImportError:\n    AutoModel = None"},
    ],
    rules.no_pickle: [
        {"base/storage/artifacts.py": "import pickle"},
        {"train/a.py": "import torch\ntorch.save({}, 'x')"},
        {"train/a.py": "import torch\ntorch.load('x', weights_only=False)"},
        {"ids/a.py": "import numpy as np\nnp.load('x', allow_pickle=True)"},
    ],
    rules.no_print: [{"data/a.py": "print('hello')"}, {"train/a.py": "import sys\nsys.stderr.write('hello')"}],
    rules.private_names_stay: [
        {"data/a.py": "from capsid.base.storage.artifacts import _seal", "base/storage/artifacts.py": ""},
        {"data/a.py": "from capsid.base.storage import artifacts\nartifacts._seal()", "base/storage/artifacts.py": ""},
        {"data/a.py": "from capsid._hidden import x"},
    ],
}
ALLOWED = {
    "__init__.py": "",
    "errors.py": "",
    "base/storage/artifacts.py": "import sys\nfrom capsid.errors import DataError",
    "progress.py": "print('on the way')",
    "ids/trie.py": "import numpy as np\nfrom capsid.errors import DataError\nnp.load('x', allow_pickle=False)",
    "train/loop.py": "import torch\nfrom capsid.ids import trie\ntorch.load('x', weights_only=True)",
    "generate/network.py": "from capsid.train.loop import fit",
    "decode/beam.py": "from capsid.ids.trie import Trie\nimport torch",
    "evaluate/metrics.py": "import numpy\nfrom capsid.ids.trie import Trie",
    "recommender.py": "def fit():\n    from capsid.train.loop import fit",
    "serve/app.py": "from capsid.recommender import Recommender\nimport fastapi",
    "cli/main.py": "from capsid import __version__\ndef f():\n    import capsid.serve.app\nprint(__version__)",
}


def plant(folder: Path, tree: dict[str, str]) -> dict[str, rules.Module]:
    for name, text in {"__init__.py": "", **tree}.items():
        path = folder / "capsid" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return rules.read_package(folder / "capsid")


def run_python(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


def loaded_after(code: str) -> set[str]:
    """Top-level packages and modules of capsid in a fresh interpreter after `code`."""
    return set(run_python(f"{code}\nimport sys\nprint('\\nLOADED', *sys.modules)").split("LOADED")[1].split())


@pytest.fixture(scope="module")
def house() -> dict[str, rules.Module]:
    modules = rules.read_package(SOURCE)
    assert len(modules) > 20, "the package was not found"
    return modules


@pytest.mark.parametrize("rule", PLANTED, ids=lambda rule: rule.__name__)
def test_rule_holds(rule: Rule, house: dict[str, rules.Module]) -> None:
    assert rule(house) == []


@pytest.mark.parametrize(
    ("rule", "tree"),
    [(rule, tree) for rule, trees in PLANTED.items() for tree in trees],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_rule_finds_planted_violation(rule: Rule, tree: dict[str, str], tmp_path: Path) -> None:
    assert rule(plant(tmp_path, tree)) != []


@pytest.mark.parametrize("rule", PLANTED, ids=lambda rule: rule.__name__)
def test_rule_accepts_what_is_allowed(rule: Rule, tmp_path: Path) -> None:
    assert rule(plant(tmp_path, ALLOWED)) == []


def test_ids_and_metrics_load_without_torch(house: dict[str, rules.Module]) -> None:
    names = rules.torch_free_modules(house)
    assert {"capsid.ids.trie", "capsid.evaluate.metrics"} <= set(names)
    loaded = loaded_after("import " + ", ".join(names))
    assert "capsid.ids.trie" in loaded
    assert "torch" not in loaded


def test_import_capsid_is_light() -> None:
    assert not loaded_after("import capsid") & {"torch", "polars", "numpy"}


def test_help_starts_without_the_heavy_libraries() -> None:
    """The command line answers --help in under 0.3 s, so it cannot load any of these."""
    code = (
        "import sys\nfrom capsid.__main__ import main\nsys.argv = ['capsid', '--help']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code"
    )
    loaded = loaded_after(code)
    assert not loaded & ({"torch", "polars", "pyarrow", "scipy", "faiss"} | rules.HEAVY)
