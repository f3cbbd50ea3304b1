"""One declaration of a field makes its check, its message and its help."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsid.base.config import from_dict, override
from capsid.errors import ConfigError
from capsid.settings import Bounds, SettingError, check_settings, rules_of, setting


@dataclass(kw_only=True, frozen=True)
class Oar:
    kind: ClassVar[str] = "oar"
    length: float = setting(2.5, "Metres from grip to blade.", above=0)

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(kw_only=True, frozen=True)
class Boat:
    kind: ClassVar[str] = "boat"
    dropped: ClassVar[dict[str, str]] = {"engine": "boats are rowed"}
    crew: int = setting(4, "How many people row.", least=1, most=8, formerly=("rowers", "hands"))
    drag: float = setting(0.5, "Share of the speed that is lost.", least=0, below=1)
    ballast: float = setting(0.0, "Added weight; below 0: buoyancy.")
    wood: str = setting("oak", "What it is built of.", choices=("oak", "ash"))
    bow: Literal["sharp", "blunt"] = setting("sharp", "Its shape in front.")
    name: str = setting("Ida", "Painted on the stern.", count=(1, None))
    seats: tuple[int, ...] = setting((1, 1), "People per bench.", least=1, count=(1, None))
    slope: tuple[float, float] = setting((0.0, 1.0), "Rise of the keel at bow and stern.", least=-1, most=1, count=2)
    sail: bool = setting(False, "Whether there is a mast.")
    oar: Oar = setting(factory=Oar, about="What the crew holds.")
    spare: Oar | None = setting(None, "A second one.")
    anchor: float | None = setting(None, "Its weight.", above=0)
    cargo: Any = setting(None, "Whatever.")

    def __post_init__(self) -> None:
        check_settings(self)


KINDS = {"boat": Boat, "oar": Oar}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("crew", 0, "boat.crew must be from 1 to 8, got 0"),
        ("crew", 9, "boat.crew must be from 1 to 8, got 9"),
        ("crew", 1.5, "boat.crew must be a whole number from 1 to 8, got 1.5"),
        ("crew", True, "boat.crew must be a whole number from 1 to 8, got True"),
        ("crew", None, "boat.crew must be a whole number from 1 to 8, got None"),
        ("drag", 1.0, "boat.drag must be at least 0 and below 1, got 1.0"),
        ("drag", math.nan, "boat.drag must be a finite number at least 0 and below 1, got nan"),
        ("ballast", math.inf, "boat.ballast must be a finite number, got inf"),
        ("ballast", "heavy", "boat.ballast must be a finite number, got 'heavy'"),
        ("wood", "elm", "boat.wood must be one of oak, ash, got 'elm'"),
        ("wood", 3, "boat.wood must be one of oak, ash, got 3"),
        ("bow", "round", "boat.bow must be one of sharp, blunt, got 'round'"),
        ("name", "", "boat.name must be a non-empty string, got ''"),
        ("seats", (), "boat.seats must be 1 or more whole numbers, each at least 1, got ()"),
        ("seats", (2, 0), "boat.seats must be 1 or more whole numbers, each at least 1, got (2, 0)"),
        ("seats", 2, "boat.seats must be 1 or more whole numbers, each at least 1, got 2"),
        ("slope", (0.0,), "boat.slope must be 2 finite numbers, each from -1 to 1, got (0.0,)"),
        ("slope", (0.0, math.nan), "boat.slope must be 2 finite numbers, each from -1 to 1, got (0.0, nan)"),
        ("ballast", 10**400, "boat.ballast must be a finite number, got a number of 1,329 bits"),
        ("crew", 2**63, "boat.crew must be a whole number from 1 to 8, got 9223372036854775808"),
        ("sail", 1, "boat.sail must be true or false, got 1"),
        ("oar", None, "boat.oar must be a part of kind oar, got None"),
        ("spare", 3, "boat.spare must be a part of kind oar, or none, got 3"),
        ("anchor", 0.0, "boat.anchor must be above 0, got 0.0"),
    ],
)
def test_the_rule_and_the_value_are_told(field: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Boat(**{field: value})
    assert caught.value.message == message
    assert caught.value.hint
    assert caught.value.exit_code == 2


def test_the_hint_is_the_sentence_or_the_nearest_choice() -> None:
    with pytest.raises(SettingError) as caught:
        Boat(crew=0)
    assert caught.value.hint == "How many people row."
    with pytest.raises(SettingError) as caught:
        Boat(wood="asch")
    assert "did you mean 'ash'?" in (caught.value.hint or "")


def test_what_is_allowed() -> None:
    Boat(crew=8, drag=0, slope=(-1, 1.0), anchor=0.1, seats=(9,), spare=Oar(), cargo=[object()], bow="blunt")


def test_rules_for_people() -> None:
    rules = {rule.name: rule for rule in rules_of(Boat)}
    assert list(rules)[:2] == ["crew", "drag"]
    assert rules["crew"].about == "How many people row."
    assert rules["crew"].text == "a whole number from 1 to 8"
    assert rules["bow"].text == "one of sharp, blunt"
    assert rules["anchor"].text == "a finite number above 0, or none"
    assert [rules[n].type_name for n in ("crew", "drag", "wood", "sail", "oar", "seats", "cargo")] == [
        "int",
        "float",
        "text",
        "bool",
        "part",
        "int list",
        "part",
    ]


NUMBERS = st.integers(-5, 5)


@given(value=NUMBERS, least=st.none() | NUMBERS, most=st.none() | NUMBERS, above=st.none() | NUMBERS, below=NUMBERS)
def test_bounds_hold_where_all_comparisons_do(
    value: int, least: int | None, most: int | None, above: int | None, below: int
) -> None:
    bounds = Bounds(least=least, most=most, above=above, below=below)
    wanted = [value >= least] if least is not None else []
    wanted += [value <= most] if most is not None else []
    wanted += [value > above] if above is not None else []
    assert bounds.holds(value) == all([*wanted, value < below])


def test_a_setting_from_text_names_its_whole_path() -> None:
    with pytest.raises(ConfigError) as caught:
        override(Boat(), "oar.length", "0")
    assert caught.value.message == "oar.length must be above 0, got 0.0"
    with pytest.raises(ConfigError) as caught:
        override(Boat(), "crew", "0")
    assert caught.value.message == "crew must be from 1 to 8, got 0"


def test_files_may_use_former_names_and_fields_that_are_gone() -> None:
    old = {"kind": "boat", "rowers": 2, "engine": "diesel", "oar": {"kind": "oar", "length": 3}}
    assert from_dict(None, old, KINDS) == Boat(crew=2, oar=Oar(length=3.0))
    assert from_dict(Boat, {"hands": 3}, KINDS) == Boat(crew=3)


def test_settings_may_not_use_what_is_gone() -> None:
    with pytest.raises(ConfigError, match="Boat has no field 'engine'") as caught:
        override(Boat(), "engine", "diesel")
    assert caught.value.hint == "boats are rowed"
    with pytest.raises(ConfigError, match="Boat has no field 'rowers'") as caught:
        override(Boat(), "rowers", "2")
    assert caught.value.hint == "it is now called 'crew'"
