"""The generated parts of the documentation match the code and the results files."""

import json

import pytest

from tools import generate, multiplier
from tools.gpu_tables import device_tables


@pytest.mark.slow
def test_no_page_is_stale() -> None:
    assert [path.name for path, text in generate.pages().items() if path.read_text() != text] == [], "run `make docs`"
    pages = "".join(path.read_text() for path in generate.pages())
    assert [part for part in generate.PARTS if pages.count(f"<!-- {part}: ") != 1] == [], "no page shows it"


def test_the_figure_of_multipliers_shows_published_points_and_ours_and_repeats_its_bytes(tmp_path, monkeypatch) -> None:
    published = multiplier.RESULTS / "published_multipliers.json"
    assert all(point["source"] for point in json.loads(published.read_text())["rows"])
    monkeypatch.setattr(multiplier, "RESULTS", tmp_path)
    monkeypatch.setattr(multiplier, "PICTURE", tmp_path / "multiplier.png")
    ours = {"question": "a", "opponent": "b", "flops": 7e12, "multiplier": 1.2, "low": 1.1, "high": 1.4}
    timed = ours | {"wall_multiplier": 0.8, "wall_low": 0.7, "wall_high": 0.9}
    steps = [("published_multipliers", published.read_text())]
    steps += [("three_questions", json.dumps({"rows": [row]})) for row in (ours, timed, timed | {"wall_low": 0.75})]
    pictures = [b""]
    for name, text in steps:
        (tmp_path / f"{name}.json").write_text(text)
        multiplier.draw()
        pictures.append(multiplier.PICTURE.read_bytes())
    multiplier.draw()
    assert len(set(pictures)) == len(pictures) == 5
    assert multiplier.PICTURE.read_bytes() == pictures[-1], "the same results give the same bytes"


def test_results_of_a_trial_are_rejected() -> None:
    with pytest.raises(ValueError, match="is from a trial run"):
        device_tables({"trial": True}, "gpu_h100.json")
