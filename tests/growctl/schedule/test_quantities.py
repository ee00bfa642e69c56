"""Counts, durations and sizes as people write them, and what hardware and machines follow from the launch block."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from growctl.schedule.fields import parse_count, parse_duration, parse_size
from growctl.schedule.launch_block import LaunchBlock


@pytest.mark.parametrize(
    ("parser", "written", "number"),
    [
        (parse_count, "2.5k", 2500),
        (parse_count, "1.234567891B", 1234567891),
        (parse_count, " 60 B ", 60 * 10**9),
        (parse_count, 1e9, 10**9),
        (parse_duration, "3d 2h 5m 7s", 266_707),
        (parse_duration, "1.5h", 5400),
        (parse_duration, 3600, 3600),
        (parse_size, "80 gb", 80 * 10**9),
        (parse_size, "1.5KiB", 1536),
        (parse_size, "3GiB", 3 * 2**30),
        (parse_size, "64B", 64),
        (parse_size, 10**9, 10**9),
    ],
)
def test_quantities_parse_as_people_write_them(parser: Callable[[Any], int], written: Any, number: int) -> None:
    assert parser(written) == number


@pytest.mark.parametrize(
    ("parser", "wrong", "allowed"),
    [
        (parse_count, "|B|15G|1,000|-5k|1e3|1.5|1.2345k|1.k", "a whole number"),
        (parse_duration, "|24|12:30:00|h|1w|5ms|1h and a bit|-5m|0.5s", "a duration"),
        (parse_size, "|GiB|80 gigs|1EiB|-1GB|0.3B", "a size"),
    ],
)
def test_other_values_and_parts_of_a_whole_are_rejected(parser: Callable[[Any], int], wrong: str, allowed: str) -> None:
    values: list[Any] = [*wrong.split("|"), 1.5, True, None, math.inf, math.nan, [], {}]
    for written in values:
        with pytest.raises(ValueError, match=f"must be {allowed}"):
            parser(written)


@pytest.mark.parametrize(
    ("hardware", "flops", "memory"),
    [
        ({"flops": "500T", "device": "h100"}, (500e12, 500e12), 80 * 10**9),
        ({"device": "h100", "memory": "94GB"}, (989e12, 67e12), 94 * 10**9),
        ({}, (None, None), None),
    ],
)
def test_hardware_is_as_the_schedule_says_or_as_its_device_or_unknown(hardware, flops, memory):
    found = LaunchBlock.model_validate({"hardware": hardware}).hardware
    assert (found.peak_flops("bf16"), found.peak_flops("fp32")) == flops
    assert found.memory_bytes == memory
