"""Exports a run's network for other runtimes: ONNX files of its two calls, the ids, and how to use them.

start.onnx  step.onnx  ids.jsonl  export.json; see docs/export.md. Needs the extra `onnx`.
"""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path
from typing import Any

import torch

from capsid.base.storage.artifacts import new_folder, write_json
from capsid.errors import ConfigError
from capsid.generate.network_parts import Start, Step, parts
from capsid.ids.reading import ItemByItem
from capsid.recommender import Recommender

KIND = "onnx"
_FREE = torch.export.Dim.DYNAMIC


def export_onnx(recommender: Recommender, out: Path) -> Path:
    """Write the folder; an error if the method cannot be exported or the extra is missing."""
    fitted, recipe = recommender.fitted, recommender.recipe
    ids = fitted.tokenizer.ids
    hint = "fit another recipe to export it, such as capsid"
    if fitted.dense is not None:
        raise ConfigError(f"the recipe {recipe.name!r} has vectors beside ids, which cannot be exported", hint=hint)
    if ids.others:
        raise ConfigError(f"the recipe {recipe.name!r} has several ids per item, which cannot be exported", hint=hint)
    if not isinstance(ids.reading, ItemByItem):
        raise ConfigError(f"the recipe {recipe.name!r} reads items in context, which cannot be exported", hint=hint)
    start, step = parts(fitted.generator)
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"exporting needs the extra `onnx`: {error}", hint="pip install 'capsid-rec[onnx]'") from None
    with new_folder(out, kind=KIND) as folder:
        _write(folder / "start.onnx", start, *_start_example())
        _write(folder / "step.onnx", step, *_step_example(step))
        # Retired items are there for histories that hold them.
        retired = recommender.catalogue_.retired
        rows = (
            {"item": item, "tokens": own.tolist(), "retired": item in retired}
            for item, own in zip(ids.items, ids.prefix_free)
        )
        (folder / "ids.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        write_json(folder / "export.json", _about(recommender, step))
    return out


def _about(recommender: Recommender, step: Step) -> dict[str, Any]:
    network = step.network
    return {
        "recipe": recommender.recipe.name,
        "over": recommender.recipe.over,
        "vocabulary": network.space.vocabulary,
        "history": recommender.fitted.generator.history,
        "layers": len(network.depth_blocks),
        "heads": network.shape.heads,
        "head_width": network.shape.width // network.shape.heads,
        # Added to the score of the last token of an item of the history, where a beam has generated its other tokens.
        "repeats": None if network.repeats is None else float(network.repeats.value().detach()),
    }


def _start_example() -> tuple[dict[str, Any], list[Any], list[str]]:
    inputs = {"tokens": torch.ones(2, 3, 2, dtype=torch.int64), "items": torch.tensor([3, 2])}
    return inputs, [{0: _FREE, 1: _FREE, 2: _FREE}, {0: _FREE}], ["scores", "keys", "values"]


def _step_example(step: Step) -> tuple[dict[str, Any], list[Any], list[str]]:
    shape, layers = step.network.shape, len(step.network.depth_blocks)
    heads, width = shape.heads, shape.width // shape.heads
    shared, own = torch.zeros(layers, 2, heads, 1, width), torch.zeros(layers, 2, 3, 2, heads, width)
    pairs = torch.ones(2, 3, dtype=torch.int64)
    inputs = {
        "keys": shared,
        "values": shared.clone(),
        "own_keys": own,
        "own_values": own.clone(),
        "parents": pairs,
        "tokens": pairs.clone(),
        "depth": torch.tensor(2),
    }
    beams, users = {1: _FREE, 2: _FREE, 3: _FREE}, {0: _FREE, 1: _FREE}
    free: list[Any] = [{1: _FREE}, {1: _FREE}, beams, dict(beams), users, dict(users), {}]
    return inputs, free, ["scores", "own_keys_after", "own_values_after"]


def _write(file: Path, module: Start | Step, inputs: dict[str, Any], free: list[Any], outputs: list[str]) -> None:
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns about libraries that nobody needs here
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module,
                tuple(inputs.values()),
                file,
                dynamo=True,
                external_data=False,
                input_names=list(inputs),
                output_names=outputs,
                dynamic_shapes=tuple(free),
                verbose=False,
            )
    finally:
        log.setLevel(level)
