"""Colours of charts: visible on white and on black, and told apart by readers with any kind of colour blindness."""

import itertools

import numpy as np
import pytest

from growctl.content.palette import COLOURS, GREY, looks
from tests.growctl.content.charts import chart, mark, series

WHITE, NEARLY_BLACK = "#ffffff", "#1c1c1c"
VISIONS = {
    "full": np.eye(3),
    "without red cones": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "without green cones": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "without blue cones": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
"""Linear RGB as it is seen (Machado, Oliveira and Fernandes 2009, severity 1)."""


def linear(colour: str) -> np.ndarray:
    """The linear RGB of a colour such as `#ff0000`."""
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def oklab(rgb: np.ndarray) -> np.ndarray:
    """Linear RGB in a space where distances are how different colours look (Ottosson 2020)."""
    cones = [[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]]
    lab = [[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]
    return np.array(lab) @ np.cbrt(np.array(cones) @ rgb.clip(0, 1))


def contrast(colour: str, background: str) -> float:
    """The contrast ratio of WCAG 2."""
    low, high = sorted(float(linear(each) @ [0.2126, 0.7152, 0.0722]) for each in (colour, background))
    return (high + 0.05) / (low + 0.05)


def test_every_colour_stands_out_from_its_background() -> None:
    for colour in (*COLOURS, GREY):
        assert contrast(colour.light, WHITE) >= 3
        assert contrast(colour.dark, NEARLY_BLACK) >= 3


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("background", ["light", "dark"])
def test_colours_are_told_apart(vision: str, background: str) -> None:
    seen = [oklab(np.array(VISIONS[vision]) @ linear(getattr(colour, background))) for colour in COLOURS]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 0.06


def test_eight_groups_have_colours_of_their_own_and_the_ninth_another_marker() -> None:
    found = looks(chart(*(series(f"run {number}", mark(1e12, 5)) for number in range(9))))
    assert len({look.colour for look in found}) == 8
    assert found[8].colour == found[0].colour
    assert found[8].marker != found[0].marker


def test_a_group_shares_a_colour_and_roles_differ_without_it() -> None:
    ladder = series("ladder", mark(1e12, 5), group="quick")
    release = series("its release", mark(1e12, 5), role="release", group="quick")
    control = series("control", mark(1e12, 5), role="control")
    published = series("paper", mark(1e12, 5), role="published", group="quick")
    found = looks(chart(ladder, release, control, published))
    assert found[0].colour == found[1].colour != found[2].colour
    assert len({look.marker for look in found}) == len({look.line for look in found}) == 4
    assert found[3].colour == GREY
    assert found[3].is_hollow
