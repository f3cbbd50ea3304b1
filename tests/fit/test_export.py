"""The exported network in another runtime gives the scores of ours; what cannot be exported is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[1] / "recommender"))
from small_recipes import small, world

from capsid.errors import ConfigError
from capsid.fit.export import export_onnx
from capsid.generate.network_parts import parts
from capsid.ragged import Ragged
from capsid.recommender import Recommender

HISTORIES = [[1, 2, 3, 4, 5], [7]]


def test_scores_in_onnxruntime_are_ours(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    recommender = Recommender(small("capsid")).fit(world())
    recommender.retire([world().items[4]])
    out = export_onnx(recommender, tmp_path / "out")
    about = json.loads((out / "export.json").read_text())
    lines = [json.loads(line) for line in (out / "ids.jsonl").read_text().splitlines()]
    assert [line["item"] for line in lines] == list(world().items)
    assert [line["item"] for line in lines if line["retired"]] == [world().items[4]]
    ids = [line["tokens"] for line in lines]
    tokens = np.zeros((2, 5, max(map(len, ids))), np.int64)
    for user, history in enumerate(HISTORIES):
        for place, item in enumerate(history):
            tokens[user, place, : len(ids[item])] = ids[item]
    start, step = (
        runtime.InferenceSession(out / name, providers=["CPUExecutionProvider"]) for name in ("start.onnx", "step.onnx")
    )
    network = recommender.fitted.generator.network
    histories = Ragged.from_rows([np.array(h) for h in HISTORIES], np.int64)
    scores, keys, values = start.run(None, {"tokens": tokens, "items": np.array([5, 1])})
    with torch.inference_mode():
        state, rows = network.start(recommender.retriever.model.read(histories))
        np.testing.assert_allclose(scores, F.linear(network.score_rows(rows), state.vectors.score_VS)[:, 0], atol=1e-4)
        own_keys = own_values = np.zeros((about["layers"], 2, 1, 0, about["heads"], about["head_width"]), np.float32)
        parents, chosen = np.zeros((2, 3), np.int64), np.array([[5, 6, 7], [8, 9, 10]])
        for depth in range(2):
            state, rows = network.step(state, torch.from_numpy(parents), torch.from_numpy(chosen))
            inputs = {"keys": keys, "values": values, "own_keys": own_keys, "own_values": own_values}
            inputs |= {"parents": parents, "tokens": chosen, "depth": np.array(depth)}
            scores, own_keys, own_values = step.run(None, inputs)
            np.testing.assert_allclose(scores, F.linear(network.score_rows(rows), state.vectors.score_VS), atol=1e-4)
            parents = np.array([[2, 0, 1], [1, 1, 0]])


@pytest.mark.parametrize("kind", ["sasrec", "bert4rec", "popularity"])
def test_other_generators_are_refused(kind: str) -> None:
    recommender = Recommender(small(kind)).fit(world())
    with pytest.raises(ConfigError, match="cannot be exported"):
        parts(recommender.fitted.generator)
