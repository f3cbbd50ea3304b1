from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsid.base.config import canonical_json, difference, fingerprint, flatten, from_dict, override, to_dict
from capsid.errors import ConfigError


@dataclass(kw_only=True, frozen=True)
class Wheel:
    kind: ClassVar[str] = "wheel"
    spokes: int = 20
    width: float = 1.5


@dataclass(kw_only=True, frozen=True)
class Sail:
    kind: ClassVar[str] = "sail"
    area: float = 3.0


@dataclass(kw_only=True, frozen=True)
class Cart:
    kind: ClassVar[str] = "cart"
    name: str = "cart"
    brake: bool = False
    wood: Literal["oak", "ash"] = "oak"
    sizes: tuple[int, ...] = (1, 2)
    wheels: tuple[Wheel, ...] = (Wheel(), Wheel(spokes=8))
    drive: Any | None = None
    load: float | None = None
    notes: dict[str, int] = field(default_factory=dict)


# Minus zero equals zero but is written otherwise.
FLOATS = st.floats(-9, 9).map(lambda x: x + 0.0)
KINDS = {c.kind: c for c in (Wheel, Sail, Cart)}
CARTS = st.builds(
    Cart,
    name=st.text(max_size=5),
    brake=st.booleans(),
    wood=st.sampled_from(["oak", "ash"]),
    sizes=st.lists(st.integers(), max_size=3).map(tuple),
    wheels=st.lists(st.builds(Wheel, spokes=st.integers(), width=FLOATS), max_size=3).map(tuple),
    drive=st.none() | st.builds(Sail, area=FLOATS),
    load=st.none() | FLOATS,
    notes=st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@given(cart=CARTS)
def test_round_trip_through_json(cart: Cart) -> None:
    assert from_dict(None, json.loads(json.dumps(to_dict(cart))), KINDS) == cart
    assert from_dict(Cart, to_dict(cart), KINDS) == cart


@given(a=CARTS, b=CARTS)
def test_fingerprint_and_difference_say_equal_exactly_for_equals(a: Cart, b: Cart) -> None:
    assert (fingerprint(a) == fingerprint(b)) == (a == b)
    assert (difference(a, b) == {}) == (flatten(a) == flatten(b)) == (a == b)
    assert fingerprint(a, 1) != fingerprint(a, 2)


def test_fingerprint_does_not_depend_on_the_order_of_keys() -> None:
    assert canonical_json({"a": 1, "b": 2}) == canonical_json({"b": 2, "a": 1})
    assert fingerprint("a", "b") != fingerprint("ab", "")


def test_an_integer_in_a_file_becomes_the_fields_float() -> None:
    wheel = from_dict(Wheel, {"width": 2}, KINDS)
    assert type(wheel.width) is float
    assert fingerprint(wheel) == fingerprint(Wheel(width=2.0))


@pytest.mark.parametrize(
    ("data", "message", "hint"),
    [
        ({"kind": "cart", "nmae": "x"}, "Cart has no field 'nmae'", "'name'"),
        ({"kind": "card"}, "unknown kind of part 'card'", "'cart'"),
        ({"name": "x"}, "a part has no kind", "kind"),
        ({"kind": "cart", "drive": {"kind": "snail"}}, "unknown kind of part 'snail'", "'sail'"),
        ({"kind": "cart", "wheels": [{"kind": "wheel", "spoke": 3}]}, "Wheel has no field 'spoke'", "'spokes'"),
    ],
)
def test_unknown_keys_and_kinds(data: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        from_dict(None, data, KINDS)
    assert hint in (caught.value.hint or "")


def test_what_is_no_mapping_or_no_plain_value() -> None:
    with pytest.raises(ConfigError, match="expected a mapping"):
        from_dict(Cart, [1], KINDS)
    with pytest.raises(ConfigError, match="cannot hold a set"):
        to_dict({"a": {1, 2}})


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("name", "7", "7"),
        ("brake", "yes", True),
        ("brake", "False", False),
        ("wood", "ash", "ash"),
        ("sizes", "3, 4,5", (3, 4, 5)),
        ("sizes", "(3,)", (3,)),
        ("sizes", "", ()),
        ("load", "2", 2.0),
        ("load", "none", None),
        ("drive", "none", None),
    ],
)
def test_override_is_typed_by_the_field(path: str, text: str, expected: object) -> None:
    before = Cart(load=1.0, drive=Sail())
    after = override(before, path, text)
    assert getattr(after, path) == expected
    assert type(getattr(after, path)) is type(expected)
    assert before == Cart(load=1.0, drive=Sail()), "the original changed"
    assert set(difference(before, after)) <= {path, *(p for p in flatten(before) if p.startswith("drive"))}


def test_override_reaches_below() -> None:
    cart = override(override(Cart(drive=Sail()), "wheels.1.spokes", "9"), "drive.area", "5")
    assert [w.spokes for w in cart.wheels] == [20, 9]
    assert cart.drive == Sail(area=5.0)
    assert override(cart, "sizes.1", "7").sizes == (1, 7)
    assert difference(Cart(drive=Sail()), cart) == {"wheels.1.spokes": (8, 9), "drive.area": (3.0, 5.0)}


@pytest.mark.parametrize(
    ("path", "text", "message", "hint"),
    [
        ("braek", "1", "no field 'braek'", "'brake'"),
        ("brake", "maybe", "^brake must be true or false, got 'maybe'", ""),
        ("load", "heavy", "^load must be a finite number, or none, got 'heavy'", ""),
        ("wheels.0.spokes", "1.5", "^wheels.0.spokes must be a whole number, got '1.5'", ""),
        ("sizes", "1,x", "^sizes must be whole numbers, got '1,x'", ""),
        ("sizes.0", "x", "^sizes must be whole numbers, got 'x'", ""),
        ("wood", "elm", "^wood must be one of oak, ash, got 'elm'", "oak"),
        ("wheels.2.spokes", "1", "'2' does not select one of 2", "count from 0"),
        ("wheels.first", "1", "'first' does not select", ""),
        ("name.length", "1", "name is a value without fields", "write name=value"),
        ("drive", "snail", "drive cannot be .snail.", "sail"),
        ("wheels.0", "x", "cannot be set from text", ""),
    ],
)
def test_override_refuses(path: str, text: str, message: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        override(Cart(), path, text, KINDS)
    assert hint in (caught.value.hint or "")
    assert caught.value.exit_code == 2


def test_a_part_is_set_by_the_name_of_its_kind() -> None:
    cart = override(Cart(), "drive", "sail", KINDS)
    assert cart.drive == Sail()
    assert override(cart, "drive", "null", KINDS).drive is None


def test_difference_shows_what_one_side_lacks() -> None:
    changed = difference(Cart(), Cart(drive=Sail(), wheels=(Wheel(),)))
    assert changed["drive.area"] == (None, 3.0)
    assert changed["drive.kind"] == (None, "sail")
    assert changed["wheels.1.spokes"] == (8, None)


def test_a_part_inside_another_is_compared_with_the_same_part_alone() -> None:
    bare, inside = Cart(drive=Wheel(spokes=6)), Cart(drive=Cart(drive=Wheel(spokes=7)))
    changed = difference(bare, inside)
    assert changed["drive.drive.spokes"] == (6, 7)
    assert changed["drive.kind"] == (None, "cart")
    assert not any(path.startswith(("drive.drive.width", "drive.spokes")) for path in changed)
    assert difference(inside, bare)["drive.drive.spokes"] == (7, 6)


def test_parts_in_lists_of_lists_have_paths_of_their_own() -> None:
    assert flatten({"views": (("a", Sail()),), "plain": ((1, 2), (3, 4))}) == {
        "views.0.0": "a",
        "views.0.1.kind": "sail",
        "views.0.1.area": 3.0,
        "plain": [[1, 2], [3, 4]],
    }


def test_several_parts_are_set_by_the_names_of_their_kinds() -> None:
    assert override(Cart(), "wheels", "wheel, wheel, wheel", KINDS).wheels == (Wheel(), Wheel(), Wheel())
    assert override(Cart(), "wheels", "", KINDS).wheels == ()
    with pytest.raises(ConfigError, match="wheels cannot be 'sail'"):
        override(Cart(), "wheels", "wheel,sail", KINDS)
