"""Soft codes behind hard ones: the generator notices nothing, and every path alone reaches every codebook."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor
from worlds import make_table, random_generator

from capsid.errors import ConfigError
from capsid.generate.generator import TimelineGenerator
from capsid.generate.joint_rivals import PATHS, BoundCodes, GumbelCodes
from capsid.generate.next_token import NextToken
from capsid.generate.terms import Objective, Step, TermContext
from capsid.ids.assignment import balanced_columns
from capsid.ids.collisions import Suffix
from capsid.ids.reading import Lesson
from capsid.ids.trie import Trie
from capsid.progress import silent
from capsid.ragged import Ragged
from capsid.tokenize.item_tokenizer import ItemTokenizer
from capsid.tokenize.rivals.quantisers import ResidualKMeans
from capsid.tokenize.rivals.rqvae import RQVAE
from capsid.tokenize.rivals.rqvae_network import Sinkhorn
from capsid.train.options import Training

ITEMS, DEPTHS = 30, 3
VECTORS = np.random.default_rng(0).normal(size=(ITEMS, 6))
# One item comes twice, and in two rows.
PIECES = Ragged.from_rows([[3, 7, 1, 12], [5, 3], [0, 9, 9, 7, 2], [11, 3, 5]], np.int64)


@cache
def tokenizer(catalogue: bool = True) -> ItemTokenizer:
    rqvae = RQVAE(
        codebooks=(4, 4, 4),
        hidden=(8,),
        latent=5,
        assign=Sinkhorn(depths=DEPTHS, catalogue=catalogue),
        training=Training(steps=6, batch_size=16, validate_every=3),
    )
    return ItemTokenizer(tokenizer=rqvae, collisions=Suffix(capacity=16)).fit(make_table(VECTORS))


def context(given: ItemTokenizer | None = None) -> TermContext:
    given = given or tokenizer()
    return TermContext(given.ids, (Trie.build(given.ids.prefix_free),), "vocabulary", given, 16, 5)


def bound(**settings: object) -> BoundCodes:
    return GumbelCodes(**settings).bind(context())  # type: ignore[arg-type, return-value]


def generator(**settings: object) -> TimelineGenerator:
    return random_generator(tokenizer().ids, 3, kind=TimelineGenerator, **settings)  # type: ignore[return-value]


def lesson() -> Lesson:
    return tokenizer().ids.lesson(PIECES, last=6)


def gradients(*paths: str, **settings: object) -> list[Tensor]:
    """Of every codebook, from the next token's loss alone."""
    term = bound(paths=paths, own_weight=0.0, **settings)
    objective = Objective((NextToken(),), context())
    objective.terms["codes"] = term
    network = generator().network
    objective.loss(lesson(), network).backward()
    return [torch.zeros_like(book) if book.grad is None else book.grad for book in term.books]


@pytest.mark.parametrize("path", PATHS)
def test_each_path_alone_reaches_every_codebook(path: str) -> None:
    assert all(gradient.abs().max() > 0 for gradient in gradients(path))


def test_no_path_reaches_nothing_and_all_add_up() -> None:
    assert all(gradient.abs().max() == 0 for gradient in gradients())
    alone = [gradients(path) for path in PATHS]
    for depth, together in enumerate(gradients(*PATHS)):
        torch.testing.assert_close(together, sum(one[depth] for one in alone), rtol=1e-3, atol=1e-6)


def test_the_generator_notices_nothing() -> None:
    found = []
    for terms in ((NextToken(),), (NextToken(), GumbelCodes(own_weight=0.0))):
        network = generator(dropout=0.2).network.train()
        objective = Objective(terms, context()).train()
        torch.manual_seed(1)
        loss = objective.loss(lesson(), network)
        loss.backward()
        found.append((loss.detach(), [p.grad for p in network.parameters()]))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=0, atol=0)
    for plain, beside in zip(found[0][1], found[1][1]):
        torch.testing.assert_close(plain, beside, rtol=0, atol=0)


def test_the_path_through_labels_is_cross_entropy_with_soft_labels() -> None:
    term, network, given = bound(noise=0.0), generator().network, lesson()
    prepared = term.prepare(given, network)
    predictions = network.predict(given)
    items_M = torch.from_numpy(np.searchsorted(prepared.unique_U, given.item_M))
    term._labels(Step(given, network, predictions), prepared.zeros, items_M).backward()
    found = [book.grad.clone() for book in term.books]
    # The slow twin: labels are soft codes, scores are of all tokens.
    twin = bound(noise=0.0)
    soft, _ = twin._soft(prepared.unique_U)
    logits_NV = predictions.scores_NV.detach()
    if predictions.added is not None:
        logits_NV[predictions.added.rows_E, predictions.added.tokens_E] += predictions.added.values_E.detach()
    log_NV = logits_NV.log_softmax(1)
    ids, total, row = tokenizer().ids, torch.zeros(()), 0
    for m, item in enumerate(given.item_M):
        for depth in range(len(given.tokens[m])):
            if depth < DEPTHS:
                base = ids.layout.bases[depth]
                label_K = soft[depth][int(np.searchsorted(prepared.unique_U, item))]
                total = total - (label_K * log_NV[row, base : base + 4]).sum()
            row += 1
    (total / row).backward()
    for book, gradient in zip(twin.books, found):
        torch.testing.assert_close(book.grad, gradient, rtol=1e-4, atol=1e-6)


def test_soft_codes_and_the_codebooks_own_loss_depth_by_depth() -> None:
    """The slow twin, item by item. What a depth leaves to the next one carries no gradient."""
    term, twin = bound(noise=0.0, temperature=3.0), bound(noise=0.0)
    items = np.array([3, 8, 21])
    soft, own = term._soft(items)
    latents, codes = tokenizer().tokenizer_.latents(VECTORS.astype(np.float32)), tokenizer().ids.codes
    wanted = torch.zeros(())
    for row, item in enumerate(items):
        latent_C = torch.from_numpy(latents[item])
        left_C, chosen = latent_C, []
        for depth, book_KC in enumerate(twin.books):
            scores_K = torch.stack([-(left_C - code_C).square().sum() for code_C in book_KC])
            torch.testing.assert_close(soft[depth][row], (scores_K / 3.0).softmax(0), rtol=1e-4, atol=1e-6)
            chosen.append(book_KC[int(codes[int(item)][depth])])
            wanted = wanted + (chosen[-1] - left_C).square().mean() / len(items)
            left_C = left_C - chosen[-1].detach()
        wanted = wanted + (torch.stack(chosen).sum(0) - latent_C).square().mean() / len(items)
    torch.testing.assert_close(own, wanted)
    own.backward()
    wanted.backward()
    for found, expected in zip(term.books, twin.books):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-6)


def test_suffixes_are_hard() -> None:
    term, network = bound(), generator().network
    prepared = term.prepare(lesson(), network)
    ids = tokenizer().ids
    own = lesson().batch.own
    suffix_R = ids.layout.depth_of[own.values] >= DEPTHS
    assert suffix_R.any()
    weights = torch.randn(prepared.inputs_RD.shape, generator=torch.Generator().manual_seed(0))
    (prepared.inputs_RD * weights * torch.from_numpy(suffix_R)[:, None]).sum().backward()
    assert all(book.grad is None or book.grad.abs().max() == 0 for book in term.books)


def test_noise_is_for_codes_that_are_used_much() -> None:
    assert gradients(*PATHS, noise=0.0)[0].tolist() != gradients(*PATHS, noise=1.0, ratio=0.0)[0].tolist()
    for quiet in ({"noise": 0.0}, {"noise": 1.0, "ratio": 4.1}):
        torch.testing.assert_close(gradients(*PATHS, **quiet)[0], gradients(*PATHS, noise=0.0)[0], rtol=0, atol=0)
    term = bound(momentum=0.5)
    before = term.use_0.clone()
    assert float(before.sum()) == pytest.approx(1)
    term.eval()._soft(np.array([1, 2]))
    torch.testing.assert_close(term.use_0, before, rtol=0, atol=0)
    first = term.train()._soft(np.array([1, 2]))[0]
    assert float(term.use_0.sum()) == pytest.approx(1)
    assert (term.use_0 - before).abs().max() > 0.1
    steady = bound(momentum=0.0, ratio=0.0).train()
    draws = [steady._soft(np.array([1, 2]))[0][0] for _ in range(2)]
    assert (draws[0] - draws[1]).abs().max() > 1e-3, "the next step draws other noise"
    # A step draws its own noise, and the same when it is made again.
    again = bound(momentum=0.5).train()._soft(np.array([1, 2]))[0]
    torch.testing.assert_close(first[0], again[0], rtol=0, atol=0)


def test_settled_ids_are_those_of_the_new_codebooks() -> None:
    term = bound()
    table = make_table(VECTORS)
    same = term.settle(table, silent)
    assert same.ids.codes == tokenizer().ids.codes, "codebooks that did not move give the same ids"
    with torch.no_grad():
        term.books[0].copy_(term.books[0].flip(0))
    moved = term.settle(table, silent)
    assert moved.ids.codes.dense()[:, 0].tolist() == (3 - tokenizer().ids.codes.dense()[:, 0]).tolist()
    assert moved.ids.layout == tokenizer().ids.layout
    assert same.tokenizer_ is not tokenizer().tokenizer_
    left_NC = moved.tokenizer_.latents(VECTORS.astype(np.float32))
    for depth, book_KC in enumerate(moved.tokenizer_.centres()):
        costs_NK = ((left_NC[:, None] - book_KC) ** 2).sum(2)
        code_N = balanced_columns(costs_NK, epsilon=0.003, iterations=50)
        np.testing.assert_array_equal(moved.ids.codes.dense()[:, depth], code_N, "balanced over the catalogue")
        left_NC = left_NC - book_KC[code_N]
    nearest = tokenizer(False)
    assert nearest.ids.codes == nearest.tokenizer_.encode(table.with_block("item", VECTORS.astype(np.float32)))


def test_what_cannot_be_trained() -> None:
    plain = ItemTokenizer(tokenizer=ResidualKMeans(codebooks=(4, 4))).fit(make_table(VECTORS))
    with pytest.raises(ConfigError, match="'residual-kmeans' has no codebooks to train"):
        GumbelCodes().bind(context(plain))


def test_ids_of_varying_length_are_refused() -> None:
    rqvae = RQVAE(codebooks=(4, 4, 4), hidden=(8,), latent=4, crowd=9, training=Training(steps=5, batch_size=8))
    short = ItemTokenizer(tokenizer=rqvae).fit(make_table(VECTORS))
    assert short.ids.codes.lengths.min() == 2, "all ids are long, so nothing is tested"
    with pytest.raises(ConfigError, match=r"one token at every depth, 3 here, got ids with 2 to [23]"):
        GumbelCodes().bind(context(short))
