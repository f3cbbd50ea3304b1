"""`docs/adding-a-method.md` is true: its parts, written outside the package, are fitted, stored, loaded and inspected.

The blocks that begin with `# my_parts.py` are one module, the entry points are those of the page, and every other file
that a block names must hold the block.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from worlds import loss_of, make_ids, make_table, random_codes, random_generator, random_histories, reader_of

from capsid import ItemTokenizer, Recommender
from capsid.base.vocabulary import Vocabulary
from capsid.cli.main import run as command
from capsid.data.planted import planted_dataset
from capsid.data.prepared import write_prepared
from capsid.data.sources import load_dataset
from capsid.decode.beam import BeamSearch
from capsid.errors import ConfigError
from capsid.fit.folder import fit_or_reuse
from capsid.fit.tokenizers import add_items, open_tokenizer
from capsid.generate.next_token import NextToken
from capsid.ragged import Ragged
from capsid.recipe import Recipe
from capsid.recipes import all_recipes, get_recipe

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adding-a-method.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
SMALL = (
    "encoder.dim=16",
    "tokenizer.bits=3",
    "generator.layers=1",
    "generator.width=16",
    "generator.feedforward=32",
    "generator.history=6",
    "schedule.0.training.steps=10",
    "schedule.0.training.validate_every=5",
    "schedule.0.training.validation_users=20",
)


def blocks_of(file: str) -> list[str]:
    """The code of the blocks that say they belong to a file."""
    head = f"# {file}\n"
    return [block.removeprefix(head) for block in BLOCKS if block.startswith(head)]


def small(recipe: Recipe) -> Recipe:
    return recipe.with_settings(SMALL)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The page's module, installed as a package with the page's entry points."""
    site = tmp_path_factory.mktemp("site")
    (site / "my_parts.py").write_text("\n\n".join(blocks_of("my_parts.py")), encoding="utf-8")
    (toml,) = re.findall(r"^```toml\n(.*?)^```", PAGE, re.M | re.S)
    groups = tomllib.loads(toml)["project"]["entry-points"]
    lines = [f"[{group}]\n" + "".join(f"{n} = {v}\n" for n, v in names.items()) for group, names in groups.items()]
    info = site / "my_parts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-parts\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(lines))
    sys.path.insert(0, str(site))
    yield __import__("my_parts")
    sys.path.remove(str(site))
    del sys.modules["my_parts"]


@pytest.fixture
def uninstalled(installed: ModuleType) -> Iterator[ModuleType]:
    """The module without its entry points."""
    site = str(Path(str(installed.__file__)).parent)
    sys.path.remove(site)
    yield installed
    sys.path.insert(0, site)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the data that the page recommends from."""
    dataset = planted_dataset(branching=(4, 2, 2), items_per_leaf=3, users=60, length=8)
    named = dataclasses.replace(dataset, items=Vocabulary(["tea-01", "cup-17", *dataset.items[2:]]))
    return write_prepared(named, tmp_path_factory.mktemp("data") / "my-shop")


@pytest.fixture(scope="module")
def fitted(installed: ModuleType, shop: Path) -> Recommender:
    return Recommender(small(installed.HYPERPLANES)).fit(load_dataset(str(shop)))


def kinds_of_page(module: ModuleType) -> dict[str, type]:
    return {"hyperplanes": module.Hyperplanes, "z-loss": module.ZLoss, "varied": module.Varied}


def capsid(*arguments: object) -> str:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = command([str(a) for a in arguments])
    assert code == 0, err.getvalue()
    return out.getvalue()


def test_code_that_is_quoted_is_there() -> None:
    named = {re.match(r"# (src/\S+)\n", block) for block in BLOCKS} - {None}
    assert len(named) >= 2
    for file in {found[1] for found in named if found}:
        source = (ROOT / file).read_text(encoding="utf-8")
        assert all(block in source for block in blocks_of(file)), file
    for file in re.findall(r"`((?:recipes|tokenize|generate|decode|encode|ids|evaluate|data)/\w+\.py)`", PAGE):
        assert (ROOT / "src" / "capsid" / file).exists(), file


def test_the_page_runs(
    uninstalled: ModuleType, shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The blocks that belong to no file, one after the other, with a recipe that learns in a second."""
    monkeypatch.chdir(shop.parent)
    names: dict[str, Any] = {**vars(uninstalled), "HYPERPLANES": small(uninstalled.HYPERPLANES)}
    loose = [block for block in BLOCKS if not block.startswith("# ")]
    assert len(loose) == 2
    for block in loose:
        exec(compile(block, "adding-a-method.md", "exec"), names)
    assert len(capsys.readouterr().out.split(",")) == 5


def test_a_run_is_stored_loaded_and_inspected(fitted: Recommender, uninstalled: ModuleType, tmp_path: Path) -> None:
    fitted.save_pretrained(tmp_path / "run")
    with pytest.raises(ConfigError, match="unknown kind of part") as failed:
        Recommender.from_pretrained(tmp_path / "run")
    assert "install that package, or pass kinds=" in str(failed.value.hint)
    kinds = kinds_of_page(uninstalled)
    again = Recommender.from_pretrained(tmp_path / "run", kinds=kinds)
    assert again.recipe == fitted.recipe
    assert again.fitted.tokenizer.ids == fitted.fitted.tokenizer.ids
    assert again.recommend(["tea-01", "cup-17"]) == fitted.recommend(["tea-01", "cup-17"])
    opened = open_tokenizer(tmp_path / "run", kinds=kinds)
    codes = tuple(fitted.fitted.tokenizer.ids.codes[0].tolist())
    assert opened.inspect("tea-01").codes == codes
    assert opened.quality().items == len(opened.items)


def test_items_are_added_to_a_run_from_outside(fitted: Recommender, uninstalled: ModuleType, tmp_path: Path) -> None:
    fitted.save_pretrained(tmp_path / "run")
    kinds, old = kinds_of_page(uninstalled), fitted.catalogue_
    new = old.attributes[:1].with_columns(item_id=np.array(["tea-02"]))
    add_items(tmp_path / "run", new, tmp_path / "more", kinds=kinds)
    more = open_tokenizer(tmp_path / "more", kinds=kinds)
    assert len(more.items) == len(old.items) + 1
    assert more.inspect("tea-02").codes == more.inspect("tea-01").codes


def test_a_tokenizer_alone(uninstalled: ModuleType, shop: Path, tmp_path: Path) -> None:
    parts = uninstalled.HYPERPLANES
    made = ItemTokenizer(encoder=parts.encoder, tokenizer=uninstalled.Hyperplanes(bits=6)).fit(load_dataset(str(shop)))
    made.save_pretrained(tmp_path / "ids")
    again = ItemTokenizer.from_pretrained(tmp_path / "ids", kinds={"hyperplanes": uninstalled.Hyperplanes})
    assert again.ids == made.ids


def test_a_fit_reuses_what_stands_there(uninstalled: ModuleType, shop: Path, tmp_path: Path) -> None:
    recipe, data = small(uninstalled.HYPERPLANES), load_dataset(str(shop))
    assert not fit_or_reuse(Recommender(recipe), data, tmp_path / "run").reused
    assert fit_or_reuse(Recommender(recipe), data, tmp_path / "run").reused


@pytest.mark.usefixtures("installed")
def test_entry_points_reach_the_command_line(shop: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = [part for setting in SMALL for part in ("--set", setting)]
    assert "hyperplanes" in capsid("recipes", "list")
    assert "How many items of a list may share their first token." in " ".join(
        s["about"] for s in json.loads(capsid("recipes", "show", "hyperplanes", "--json"))["settings"]
    )
    capsid("fit", "predecessors", "--data", shop, "--out", out, *settings)
    found = json.loads(capsid("recommend", out, "--history", "tea-01", "-k", 5, "--json"))
    assert len(found["items"]) == 5
    assert json.loads(capsid("tokenizer", "inspect", out, "tea-01", "--json"))["item"] == "tea-01"
    assert "recall@10" in json.loads(capsid("evaluate", out, "--json"))["metrics"]


@pytest.mark.usefixtures("uninstalled")
def test_what_is_not_installed_is_not_there() -> None:
    assert "hyperplanes" not in [recipe.name for recipe in all_recipes()]
    with pytest.raises(ConfigError, match="there is no recipe 'hyperplanes'"):
        get_recipe("hyperplanes")


@pytest.mark.parametrize(
    ("group", "line", "message"),
    [
        ("capsid.parts", "hyperplanes = my_parts:ZLoss", "must name a class of that kind, got kind 'z-loss'"),
        ("capsid.parts", "hyperplanes = my_parts:np", "must name a dataclass"),
        ("capsid.parts", "hyperplanes = my_parts:Gone", "cannot be imported from my_parts:Gone"),
        ("capsid.recipes", "hyperplanes = my_parts:PREDECESSORS", "must name a Recipe of that name"),
    ],
)
def test_wrong_entry_points_are_refused(
    uninstalled: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, line: str, message: str
) -> None:
    info = tmp_path / "wrong-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wrong\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{line}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    stored = uninstalled.HYPERPLANES.to_dict()
    read = (lambda: Recipe.from_dict(stored)) if group == "capsid.parts" else (lambda: get_recipe("hyperplanes"))
    with pytest.raises(ConfigError, match=re.escape(message)):
        read()


def test_near_vectors_get_equal_codes(uninstalled: ModuleType) -> None:
    vectors = np.random.default_rng(0).normal(size=(20, 8))
    table = make_table(np.concatenate([vectors, vectors * 1.0001]))
    codes = uninstalled.Hyperplanes().fit(table).encode(table)
    assert codes.take(np.arange(20)) == codes.take(np.arange(20, 40))
    assert len({tuple(row) for row in codes.take(np.arange(20))}) > 15


def test_the_term_counts_in_the_objective(uninstalled: ModuleType) -> None:
    ids = make_ids(random_codes(0, items=12, sizes=(4, 4)), (4, 4))
    generator = random_generator(ids, dropout=0.0, embedding_dropout=0.0)
    lesson = ids.lesson(random_histories(0, 12, [4, 3]), last=6)
    found = loss_of(uninstalled.ZLoss(weight=1.0), ids, generator, lesson)
    with torch.no_grad():
        predicted = generator.network.predict(lesson)
        scores_NV = predicted.scores_NV
    assert found.item() == pytest.approx(float(scores_NV.exp().sum(-1).log().pow(2).mean()), rel=1e-4)
    assert found.item() != pytest.approx(loss_of(NextToken(), ids, generator, lesson).item())


def test_the_ranker_limits_a_first_token(uninstalled: ModuleType) -> None:
    ids = make_ids([[i // 6, i % 6] for i in range(24)], (4, 6))
    reader = reader_of(random_generator(ids), ids)
    histories = random_histories(1, 24, [3, 5, 2])
    plain = BeamSearch(width=50).rank(reader, histories, 24)
    varied = uninstalled.Varied(most=2, pool=24).rank(reader, histories, 8)
    for user in range(3):
        kept: list[int] = []
        for item in plain.items_UK[user].tolist():
            if sum(item // 6 == other // 6 for other in kept) < 2:
                kept.append(item)
        assert varied.items_UK[user].tolist() == kept[:8]


def test_the_policy_refuses_collisions(uninstalled: ModuleType) -> None:
    policy = uninstalled.Refuse()
    unique = make_ids([[0, 1], [0, 2]], (2, 3), policy)
    assert unique.suffixes is None
    with pytest.raises(ConfigError, match="1 items have the same codes as another item"):
        make_ids([[0, 1], [0, 1]], (2, 3), policy)
    with pytest.raises(ConfigError, match="1 items have the same codes"):
        unique.extend(["a2"], Ragged.from_rows([[0, 2]]), policy)


def test_the_reading_skips_repeats(uninstalled: ModuleType) -> None:
    ids = make_ids([[0], [1], [2]], (3,))
    without = dataclasses.replace(ids, reading=uninstalled.WithoutRepeats())
    repeated, plain = ([[0, 0, 1, 1, 0], [0, 2, 2]], [[0, 1, 0], [0, 2]])
    for name in ("read", "lesson"):
        got = getattr(without, name)(Ragged.from_rows(repeated, np.int64), last=6)
        wanted = getattr(ids, name)(Ragged.from_rows(plain, np.int64), last=6)
        batches = (got, wanted) if name == "read" else (got.batch, wanted.batch)
        np.testing.assert_array_equal(batches[0].tokens_BL, batches[1].tokens_BL)
