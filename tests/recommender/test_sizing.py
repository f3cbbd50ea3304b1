"""Sizes follow the data: smaller where the data is small, untouched where it is large or where the user named them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_recipes import tiny_world, world

from capsid.base.config import difference, flatten
from capsid.errors import ConfigError
from capsid.recipe import Recipe
from capsid.recipes import RECIPES, get_recipe
from capsid.recipes.sizing import DataSize, named_in, sized
from capsid.recommender import Recommender

BEAUTY = DataSize(22_363, 12_101, 198_502)
SHOP = DataSize(298, 180, 2_116)
names = st.sampled_from(sorted(RECIPES))
numbers = st.integers(1, 60_000)


def sizes(recipe: Recipe) -> dict[str, tuple[int, ...]]:
    """Every whole number of a recipe, by path."""
    found = {}
    for path, value in flatten(recipe).items():
        values = tuple(value) if isinstance(value, list) else (value,)
        if values and all(type(v) is int for v in values):
            found[path] = values
    return found


# The industrial sizes are for millions of items.
@pytest.mark.parametrize("name", [name for name in RECIPES if name != "capsid-industrial"])
@pytest.mark.parametrize("size", [BEAUTY, DataSize(19_412, 11_924, 167_597), DataSize(35_598, 18_357, 296_337)])
def test_the_benchmarks_keep_their_recipes(name: str, size: DataSize) -> None:
    assert sized(RECIPES[name], size).recipe == RECIPES[name]
    assert not str(sized(RECIPES[name], size))


@given(names, numbers, numbers, numbers)
def test_nothing_grows_and_every_change_is_told(name: str, users: int, items: int, interactions: int) -> None:
    written = RECIPES[name]
    found = sized(written, DataSize(users, items, interactions))
    changed = difference(written, found.recipe)
    assert {c.path: (c.before, c.after) for c in found.changes} == {
        path: tuple(tuple(v) if isinstance(v, list) else v for v in both) for path, both in changed.items()
    }
    before, after = sizes(written), sizes(found.recipe)
    for change in found.changes:
        assert all(1 <= now <= then for now, then in zip(after[change.path], before[change.path])), change
        assert change.path in str(found)
        assert change.reason


@given(names, st.tuples(numbers, numbers, numbers), st.integers(1, 20))
def test_more_data_never_means_fewer_codes_or_smaller_batches(name: str, data: tuple[int, int, int], more: int) -> None:
    small, large = DataSize(*data), DataSize(*(more * n for n in data))
    ours, theirs = (sizes(sized(RECIPES[name], size).recipe) for size in (small, large))
    for path, values in ours.items():
        if path.rpartition(".")[2] in ("codebooks", "codebook", "branching", "batch_size", "size"):
            assert all(a <= b for a, b in zip(values, theirs[path])), path


@given(names, numbers, st.integers(1, 20))
def test_more_data_never_means_less_training(name: str, users: int, more: int) -> None:
    """Steps alone may shrink where the batch doubles: what counts is the number of sequences."""

    def seen(recipe: Recipe) -> list[int]:
        return [phase.training.steps * phase.training.batch_size for phase in recipe.schedule]

    small, large = (sized(RECIPES[name], DataSize(n, 500, 8 * n)).recipe for n in (users, users * more))
    assert all(a <= b for a, b in zip(seen(small), seen(large)))


@given(names, st.data())
def test_what_the_user_names_wins(name: str, data: st.DataObject) -> None:
    paths = sorted(c.path for c in sized(RECIPES[name], SHOP).changes)
    chosen = data.draw(st.lists(st.sampled_from(paths), unique=True)) if paths else []
    found = sized(RECIPES[name], SHOP, chosen)
    assert not {c.path for c in found.changes} & set(chosen)
    for path in chosen:
        assert flatten(found.recipe)[path] == flatten(RECIPES[name])[path]


def test_a_named_batch_decides_the_steps() -> None:
    """The same number of sequences is trained on, whatever the batch."""
    settings = ["schedule.0.training.batch_size=32"]
    recipe = get_recipe("capsid").with_settings(settings)
    ours = sized(recipe, SHOP, named_in(settings)).recipe.schedule[0].training
    free = sized(get_recipe("capsid"), SHOP).recipe.schedule[0].training
    assert (ours.batch_size, free.batch_size) == (32, 8)
    assert ours.steps * ours.batch_size == pytest.approx(free.steps * free.batch_size, rel=0.5)


def test_a_shop_of_180_items() -> None:
    recipe = sized(get_recipe("capsid"), SHOP).recipe
    assert recipe.tokenizer.codebooks == (32, 32, 32, 32)
    training = recipe.schedule[0].training
    assert training.batch_size == 8
    assert training.steps <= 2_000
    assert 10 * training.validate_every <= training.steps
    assert sized(get_recipe("ada-sid"), SHOP).recipe.tokenizer.codebook == 32
    assert sized(get_recipe("resid"), SHOP).recipe.tokenizer.branching == (4, 7)


def test_long_histories_count_as_several() -> None:
    few, many = (sized(get_recipe("capsid"), DataSize(100, 500, n)).recipe for n in (1_000, 100_000))
    assert few.schedule[0].training.batch_size < many.schedule[0].training.batch_size


def test_sizes_are_automatic_by_name_and_by_value_unless_they_are_exact() -> None:
    data = tiny_world()
    by_name = Recommender.from_recipe("popularity")
    assert by_name.size_to(data) is not None
    named = Recommender.from_recipe("rq-kmeans", settings=["tokenizer.codebooks=64,64"])
    named.size_to(data)
    assert named.recipe.tokenizer.codebooks == (64, 64)
    assert named.recipe.schedule[0].training.batch_size == 8
    value = get_recipe("rq-kmeans")
    by_value, named = (Recommender.from_recipe(r) for r in (value, "rq-kmeans"))
    assert by_value.size_to(data) == named.size_to(data)
    with pytest.raises(ConfigError, match="sizes must be auto or exact, got 'big'"):
        Recommender(value, sizes="big")  # type: ignore[arg-type]
    for exact in (Recommender(value), *(Recommender.from_recipe(r, sizes="exact") for r in (value, "rq-kmeans"))):
        assert exact.size_to(data) is None
        assert exact.recipe == value


def test_another_dataset_gets_its_own_sizes() -> None:
    """Sizes start from the recipe as written, not from what the first dataset left of it."""
    recommender = Recommender.from_recipe("rq-kmeans")
    small = recommender.size_to(tiny_world())
    recommender.size_to(world())
    assert recommender.recipe == sized(get_recipe("rq-kmeans"), DataSize.of(world())).recipe
    assert recommender.size_to(tiny_world()) == small
