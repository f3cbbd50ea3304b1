"""`capsid plan` prints what the plan says, and refuses numbers that are none."""

from __future__ import annotations

import pytest
from cli_world import capsid

from capsid.cli.plan import parse_count
from capsid.errors import ConfigError


def test_a_plan_in_json_and_as_a_table() -> None:
    sizes = ("--items", "35.8M", "--interactions", "331.1M", "--codes", "1024", "--depth", "6", "--workers", "64")
    told = capsid("plan", *sizes, "--users", "8.6M", "--json").json
    assert told["workload"]["items"] == 35_800_000
    assert told["workload"]["users"] == 8_600_000
    assert told["rates_of_this_machine"] is False
    assert told["stages"][0]["name"] == "prepare"
    text = capsid("plan", *sizes, "--device", "cuda").out
    assert "bottleneck: " in text
    assert "* GPU speed is assumed, not measured" in text
    assert all(stage["name"] in text for stage in told["stages"])


def test_numbers() -> None:
    known = {"1200": 1200, "35.8M": 35_800_000, "1B": 10**9, "12k": 12_000, "1,000": 1000, "1_000": 1000}
    assert {text: parse_count(text, "--items") for text in known} == known
    for wrong in ("", "M", "1e9", "-3", "many", "1.2.3", "٣", "0", "99999B"):
        with pytest.raises(ConfigError, match="--items must be"):
            parse_count(wrong, "--items")


def test_wrong_values_are_told() -> None:
    answer = capsid("plan", "--items", "many", "--interactions", "1M")
    assert answer.code == 2
    assert "--items must be a number, got 'many'" in answer.err
    answer = capsid("plan", "--items", "1M", "--interactions", "1M", "--workers", "0")
    assert answer.code == 2
    assert "workers must be at least 1, got 0" in answer.err
