from __future__ import annotations

import numpy as np
import pytest
import torch
from worlds import make_ids, random_generator, random_histories, retriever_of

from capsid.errors import ArtifactError, ConfigError, NotFittedError
from capsid.generate.generator import PopularityGenerator, TransformerGenerator
from capsid.ids.collisions import Suffix

IDS = make_ids([[0, 0], [0, 1], [1, 0], [1, 2]], (2, 3))
ATOMIC = make_ids([[i] for i in range(8)], (8,))
COUNTS = np.array([3, 9, 0, 3, 7, 9, 1, 0])


def token_rows(width: int, vectors: np.ndarray, seed: int = 0) -> torch.Tensor:
    generator = TransformerGenerator(width=width, heads=2, layers=1, feedforward=8)
    return generator.build(IDS, np.ones(4), seed=seed, vectors=vectors).state()["token.weight"]


@pytest.mark.parametrize(("dim", "width"), [(6, 6), (4, 10), (30, 6)])
def test_warm_start_puts_the_vectors_in_place(dim: int, width: int) -> None:
    vectors = np.random.default_rng(0).normal(size=(IDS.layout.vocabulary, dim)).astype(np.float32)
    vectors[:2] = np.nan
    vectors[4] = np.nan
    rows = token_rows(width, vectors)
    cold = TransformerGenerator(width=width, heads=2, layers=1, feedforward=8).build(IDS, np.ones(4), seed=0).state()
    unset = [0, 1, 4]
    torch.testing.assert_close(rows[unset], cold["token.weight"][unset], rtol=0, atol=0)
    given = [i for i in range(len(vectors)) if i not in unset]
    scale = float(rows[given].std()) / 0.02
    assert 0.5 < scale < 2, "the usual spread of fresh embeddings"
    inner, wanted = rows[given] @ rows[given].T, torch.from_numpy(vectors[given] @ vectors[given].T)
    if dim <= width:
        torch.testing.assert_close(inner / inner.norm(), wanted / wanted.norm(), rtol=1e-4, atol=1e-5)
    if dim == width:
        torch.testing.assert_close(
            rows[given] / rows[given].norm(), torch.from_numpy(vectors[given]) / np.linalg.norm(vectors[given])
        )


def test_warm_start_is_a_choice_and_follows_the_seed() -> None:
    vectors = np.random.default_rng(1).normal(size=(IDS.layout.vocabulary, 5)).astype(np.float32)
    assert torch.equal(token_rows(8, vectors, 3), token_rows(8, vectors, 3))
    assert not torch.equal(token_rows(8, vectors, 3), token_rows(8, vectors, 4))
    cold = TransformerGenerator(width=8, heads=2, layers=1, feedforward=8, warm_start=False)
    plain = cold.build(IDS, np.ones(4), seed=3, vectors=vectors).state()["token.weight"]
    assert torch.equal(plain, cold.build(IDS, np.ones(4), seed=3).state()["token.weight"])
    nothing = token_rows(8, np.full((IDS.layout.vocabulary, 5), np.nan, dtype=np.float32), 3)
    assert torch.equal(nothing, plain)


def test_state_comes_back() -> None:
    generator = random_generator(IDS)
    again = TransformerGenerator(layers=2, heads=2, width=16, feedforward=24, history=6)
    again.load_state(IDS, generator.state())
    batch = IDS.read(random_histories(0, 4, [2, 3]), last=6)
    torch.testing.assert_close(again.start(batch)[1], generator.start(batch)[1], rtol=0, atol=0)
    generator.state()["token.weight"].zero_()
    assert generator.network.token.weight.abs().sum() > 0, "the state is a copy"
    with pytest.raises(ArtifactError, match="do not fit their settings"):
        again.load_state(make_ids([[0, 0], [1, 1]], (5, 5)), generator.state())
    with pytest.raises(ArtifactError, match="do not fit their settings"):
        TransformerGenerator(layers=1, heads=2, width=16, feedforward=24).load_state(IDS, generator.state())


def test_unbuilt_says_so() -> None:
    with pytest.raises(NotFittedError, match="no weights yet"):
        TransformerGenerator().state()
    with pytest.raises(NotFittedError):
        PopularityGenerator().state()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("heads", 3),
        ("heads", 0),
        ("layers", 0),
        ("width", 0),
        ("history", 0),
        ("feedforward", 0),
        ("dropout", 1.0),
        ("dropout", -0.1),
        ("embedding_dropout", 1.5),
    ],
)
def test_impossible_shapes(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field):
        TransformerGenerator(**{field: value}).build(IDS, np.ones(4), seed=0)


def test_popularity_ranks_by_counts_with_ties_in_order() -> None:
    generator = PopularityGenerator().build(ATOMIC, COUNTS, seed=0)
    expected = sorted(range(8), key=lambda i: (-COUNTS[i], i))
    ranked = retriever_of(generator, ATOMIC, width=4, history=1).rank(
        random_histories(0, 8, [1, 3, 8]), 8, filter_history=False
    )
    assert ranked.items_UK.tolist() == [expected] * 3
    shares = np.exp(ranked.scores_UK[0])
    np.testing.assert_allclose(shares, (COUNTS[expected] + 0.5) / (COUNTS + 0.5).sum(), rtol=1e-5)
    again = PopularityGenerator().load_state(ATOMIC, generator.state())
    history = random_histories(0, 8, [1])
    left = retriever_of(again, ATOMIC, history=1).rank(history, 8, filter_history=True).items_UK[0]
    assert left.tolist() == [*(i for i in expected if i != history[0][0]), -1]


def test_popularity_needs_one_token_ids() -> None:
    for ids in (IDS, make_ids([[0], [0]], (1,), Suffix())):
        with pytest.raises(ConfigError, match="one-token ids"):
            PopularityGenerator().build(ids, np.ones(len(ids)), seed=0)


def test_items_that_share_an_id_are_as_popular_as_all_of_them() -> None:
    ids = make_ids([[0], [1], [0]], (2,))
    generator = PopularityGenerator().build(ids, np.array([100, 10, 0]), seed=0)
    first, second = (generator.state()["logits"][ids.prefix_free[row][0]] for row in (0, 1))
    np.testing.assert_allclose([first, second], np.log([100.5, 10.5]), rtol=1e-6)
