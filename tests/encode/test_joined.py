from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from capsid.base.config import from_dict, override, to_dict
from capsid.base.run_options import CheckpointFile
from capsid.data.item_table import ItemTable
from capsid.encode.factorised import CollaborativeEncoder
from capsid.encode.joined import JoinedEncoder
from capsid.encode.kinds import ENCODERS, default_encoder
from capsid.encode.text import HashingEncoder
from capsid.errors import ConfigError, DataError
from capsid.progress import Progress, silent
from encode.catalogue import COLD, make_table, new_items


@dataclass(kw_only=True)
class Given:
    """A stub part: a block of the table, whatever it holds."""

    kind: ClassVar[str] = "given"

    block: str

    def fit(
        self, table: ItemTable, *, seed: int = 0, progress: Progress = silent, checkpoint: CheckpointFile | None = None
    ) -> Given:
        return self

    def transform(self, table: ItemTable, *, progress: Progress = silent) -> np.ndarray:
        return table.blocks[self.block]

    def state(self) -> dict[str, np.ndarray]:
        return {}

    def load_state(self, state: Any) -> Given:
        return self


def with_blocks(**blocks: np.ndarray) -> ItemTable:
    table = make_table(items=len(next(iter(blocks.values()))))
    return replace(table, blocks={name: block.astype(np.float32) for name, block in blocks.items()})


def join(table: ItemTable, **options: Any) -> np.ndarray:
    parts = tuple(Given(block=name) for name in table.blocks)
    return JoinedEncoder(parts=parts, **options).fit(table).transform(table)


def noise(n: int, d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d))


def test_cosine_is_the_weighted_mean_of_the_blocks_cosines() -> None:
    table = with_blocks(a=noise(50, 5, 0), b=100 * noise(50, 4, 1) + 7)
    centred = {}
    for name, block in table.blocks.items():
        moved = block - block.mean(axis=0)
        unit = moved / np.linalg.norm(moved, axis=1, keepdims=True)
        centred[name] = unit @ unit.T
    for wa, wb in ((1.0, 1.0), (3.0, 1.0)):
        vectors = join(table, weights=(wa, wb))
        expected = (wa**2 * centred["a"] + wb**2 * centred["b"]) / (wa**2 + wb**2)
        np.testing.assert_allclose(vectors @ vectors.T, expected, atol=1e-5)


def test_width_and_length() -> None:
    table = with_blocks(a=noise(90, 40, 0), b=noise(90, 30, 1), c=noise(90, 2, 2))
    for options, width in (({}, 72), ({"dim": 10}, 10), ({"block_dim": 5}, 12), ({"block_dim": 0, "dim": 99}, 72)):
        vectors = join(table, **options)
        assert vectors.shape == (90, width)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_block_reduction_keeps_the_directions_of_largest_spread() -> None:
    strong = noise(80, 3, 0)
    hidden = np.concatenate([strong, 1e-4 * noise(80, 20, 1)], axis=1) @ np.linalg.qr(noise(23, 23, 2))[0]
    reduced = join(with_blocks(a=hidden), block_dim=3)
    alone = join(with_blocks(a=strong), block_dim=3)
    np.testing.assert_allclose(reduced @ reduced.T, alone @ alone.T, atol=1e-2)


def test_zero_leaves_a_missing_block_out() -> None:
    a, b = noise(60, 5, 0), noise(60, 4, 1)
    b[:3] = 0
    table = with_blocks(a=a, b=b)
    vectors = join(table, missing="zero")
    # Among items that lack b, only a speaks; against complete items their cosine has a's share of the length.
    moved = a - a.mean(axis=0)
    unit = moved / np.linalg.norm(moved, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors[:3] @ vectors[:3].T, unit[:3] @ unit[:3].T, atol=1e-5)
    np.testing.assert_allclose(vectors[:3] @ vectors[3:].T, unit[:3] @ unit[3:].T / np.sqrt(2), atol=1e-5)


def test_predict_fills_a_block_that_the_others_determine() -> None:
    a = noise(300, 6, 0)
    a -= a.mean(axis=0)
    turned = a @ np.linalg.qr(noise(6, 6, 1))[0]
    full = join(with_blocks(a=a, b=turned))
    turned[:20] = 0
    known = {m: join(with_blocks(a=a, b=turned), missing=m) for m in ("predict", "zero")}
    truth = full[:20] @ full[20:].T
    error = {m: np.abs(v[:20] @ v[20:].T - truth).mean() for m, v in known.items()}
    assert error["predict"] < 0.05 < error["zero"]


def test_predict_stays_short_where_the_others_tell_nothing() -> None:
    table = with_blocks(a=noise(2000, 5, 0), b=noise(2000, 5, 1) * np.r_[np.zeros(10), np.ones(1990)][:, None])
    predicted, zero = (join(table, missing=m) for m in ("predict", "zero"))
    np.testing.assert_allclose(predicted[:10] @ predicted[10:].T, zero[:10] @ zero[10:].T, atol=0.1)


def test_unknown_in_every_block_is_zero() -> None:
    a, b = noise(30, 5, 0), noise(30, 4, 1)
    a[4] = b[4] = 0
    for missing in ("zero", "predict"):
        vectors = join(with_blocks(a=a, b=b), missing=missing)
        assert np.flatnonzero(~vectors.any(axis=1)).tolist() == [4]


@pytest.mark.parametrize("missing", ["zero", "predict"])
def test_items_unseen_in_training_are_placed_by_their_text(missing: Any) -> None:
    table = make_table(items=40, users=200)
    parts = (HashingEncoder(), CollaborativeEncoder(dim=8))
    encoder = JoinedEncoder(parts=parts, missing=missing).fit(table)
    vectors = encoder.transform(table)
    cold, warm = vectors[-COLD:], vectors[:-COLD]
    np.testing.assert_array_equal((cold @ warm.T).argmax(axis=1) % 4, np.arange(40 - COLD, 40) % 4)
    assert np.any(encoder.transform(new_items()) != 0, axis=1).all()


def test_the_default_joins_text_with_collaborative() -> None:
    table = make_table()
    encoder = default_encoder().fit(table)
    old, new = encoder.transform(table), encoder.transform(new_items())
    assert [part.kind for part in encoder.parts] == ["text", "collaborative"]
    np.testing.assert_array_equal((new @ old.T).argmax(axis=1) % 4, np.arange(4))


def test_fit_leaves_the_parts_given_alone() -> None:
    part = HashingEncoder()
    encoder = JoinedEncoder(parts=(part,)).fit(make_table())
    assert part.idf_ is None
    assert encoder.parts_ is not None
    assert encoder.parts_[0].idf_ is not None  # type: ignore[attr-defined]


def test_nested_configuration_comes_back_typed() -> None:
    encoder = JoinedEncoder(parts=(default_encoder(), HashingEncoder(fields=("title", "brand"))), weights=(1.0, 0.25))
    rebuilt = from_dict(None, to_dict(encoder), ENCODERS)
    assert rebuilt == encoder
    assert isinstance(rebuilt.parts[0], JoinedEncoder)
    assert rebuilt.parts[1].fields == ("title", "brand")
    assert override(encoder, "parts.1.dim", "7").parts[1].dim == 7


@pytest.mark.parametrize(
    "wrong",
    [
        {"parts": ()},
        {"weights": (1.0, 2.0)},
        {"weights": (0.0,)},
        {"weights": (float("nan"),)},
        {"dim": 0},
        {"block_dim": -1},
        {"missing": "mean"},
    ],
)
def test_bad_choices_are_config_errors(wrong: dict) -> None:
    with pytest.raises(ConfigError):
        JoinedEncoder(**{"parts": (HashingEncoder(),), **wrong})


def test_a_part_without_any_evidence_is_named() -> None:
    with pytest.raises(DataError, match="the given encoder has no evidence about any item"):
        join(with_blocks(a=noise(9, 2), b=np.zeros((9, 2))))
