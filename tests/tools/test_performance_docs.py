"""The tables of docs/performance.md match the results files, and compare goals with measurements."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tools import formats, generate, growth_axes, inspection, judge, keys, performance
from tools.tables import NOT_MEASURED, at_least, at_most, number, share_at_least, table

MACHINE = {"cpu": "A CPU", "cores": 2, "torch": "2.13.0", "python": "3.11.7", "system": "Linux"}
HEAD = {"date": "2026-01-02", "note": "nothing else ran", "machine": MACHINE, "settings": {}}


def pattention_row(dtype: str, ours: float, **changes: Any) -> dict[str, Any]:
    row = {
        "tokens": 4096,
        "width": 768,
        "num_tokens": 2140,
        "dtype": dtype,
        "milliseconds": {"floor": 123.4, "written_out": 200.0, "ours": 130.0, "compiled": 131.0},
        "over_floor": {"written_out": 1.62, "ours": ours, "compiled": 1.06},
        "over_floor_quartiles": {"ours": [1.01, 1.3]},
        "saved_bytes": {"written_out": 70_000_000, "ours": 17_500_000},
    }
    return row | changes


def written(folder: Path, name: str, **document: Any) -> Path:
    (folder / name).write_text(json.dumps(HEAD | document))
    return folder


def test_the_page_is_not_stale() -> None:
    page = performance.PAGE.read_text()
    assert page == performance.with_tables(page), "run `make docs`"


def test_the_page_has_the_marks_of_every_table_and_no_others() -> None:
    marks = re.findall(
        r"<!-- ([a-z-]+): `make docs` writes this from benchmarks/results/", performance.PAGE.read_text()
    )
    assert marks == list(performance.TABLES)


def test_a_table_without_its_results_says_so(tmp_path) -> None:
    for make in performance.TABLES.values():
        assert make(tmp_path) == NOT_MEASURED
    assert not performance.draw(tmp_path, tmp_path / "picture.png")
    assert not list(tmp_path.iterdir())


def test_every_table_is_between_its_marks_and_writing_it_again_changes_nothing(tmp_path) -> None:
    written(tmp_path, "start_up.json", median_seconds={"python": 0.02, "help": 0.3, "plan": 0.9, "first_step": 13.0})
    page = "before\n<!-- start-up: x -->\nold\n<!-- end of start-up -->\nafter\n"
    once = performance.with_tables(page, tmp_path)
    assert once.startswith(
        "before\n<!-- start-up: x -->\n\nA CPU, 2 cores; torch 2.13.0, Python 3.11.7; 2026-01-02; nothing else ran."
    )
    assert once.endswith("<!-- end of start-up -->\nafter\n")
    assert "old" not in once
    assert performance.with_tables(once, tmp_path) == once


def test_start_up_is_held_against_its_goals(tmp_path) -> None:
    written(tmp_path, "start_up.json", median_seconds={"python": 0.02, "help": 0.31, "plan": 0.9, "first_step": 13.0})
    shown = performance.start_up_table(tmp_path)
    assert "| `growctl --help` | 0.310, met | at most 0.4 |" in shown
    assert "| `growctl plan quickstart` | 0.900 | - |" in shown
    assert "to the first step | **13.0, not met** | at most 12 |" in shown


def test_following_a_run_is_held_against_its_goal(tmp_path) -> None:
    seconds = {"read_seconds": 0.002, "resume_seconds": 0.003, "event_seconds": 0.0021}
    runs = [{"lines": 1000} | seconds, {"lines": 10_000} | seconds]
    growth = {"read_seconds_per_line": 0.1, "resume_seconds_per_line": 1.51, "event_seconds": 1.0}
    shown = performance.history_table(written(tmp_path, "history.json", runs=runs, growth=growth))
    assert "| reading a line | 2 µs | 0 µs | 0.10, met |" in shown
    assert "| reading and booking a line | 3 µs | 0 µs | **1.51, not met** |" in shown
    assert "| an event of a run: a hundred lines and a checkpoint | 2,100 µs | 2,100 µs | 1.00, met |" in shown


@pytest.mark.parametrize(
    ("dtype", "ours", "shown"),
    [
        ("fp32", 1.10, "1.100 (1.010 to 1.300), met"),
        ("fp32", 1.11, "**1.110 (1.010 to 1.300), not met**"),
        ("bf16", 1.15, "1.150 (1.010 to 1.300), met"),
        ("bf16", 1.16, "**1.160 (1.010 to 1.300), not met**"),
    ],
)
def test_a_pattention_is_held_against_the_goal_of_its_dtype(tmp_path, dtype, ours, shown) -> None:
    table = performance.pattention_table(written(tmp_path, "pattention.json", rows=[pattention_row(dtype, ours)]))
    cells = f"| 4,096 x 768, 2,140, {dtype} | 123 | 1.62 | {shown} | 1.06 | 17.5 MB (70 MB) |"
    assert cells in table
    assert "nothing else ran" in table


def train_step_row(trainer: float, family: float, context: int) -> dict[str, Any]:
    return {
        "case": "some",
        "precision": "bf16",
        "num_layers": 3,
        "hidden_size": 64,
        "sequence_length": context,
        "tokens_per_second": {"trainer": 45678.9, "bare": 47000.0, "transformer": 40000.0},
        "ratios": {"trainer_over_bare": trainer, "tokenformer_over_transformer": family},
        "quartiles": {"trainer_over_bare": [0.9, 1.0], "tokenformer_over_transformer": [0.8, 1.2]},
        "peak_bytes": {"trainer": 10**9, "bare": 9 * 10**8, "transformer": 2 * 10**9},
    }


@pytest.mark.parametrize(
    ("trainer", "family", "context", "shown"),
    [
        (0.95, 0.95, 1024, "0.950 (0.900 to 1.000), met | 0.950 (0.800 to 1.200), met"),
        (0.949, 0.949, 1024, "**0.949 (0.900 to 1.000), not met** | **0.949 (0.800 to 1.200), not met**"),
        (0.96, 0.5, 64, "0.960 (0.900 to 1.000), met | 0.500 (0.800 to 1.200)"),
    ],
)
def test_the_trainer_and_both_families_are_held_against_their_goals(tmp_path, trainer, family, context, shown) -> None:
    results = written(tmp_path, "train_step.json", rows=[train_step_row(trainer, family, context)])
    cells = f"| 3 x 64, {context:,}, bf16 | 45,679 | 47,000 | {shown} | 1 GB (2 GB) |"
    assert cells in performance.train_step_table(results)


def test_memory_with_checkpointing_stands_beside_what_plan_reckons(tmp_path) -> None:
    size = {"case": "transformer", "num_layers": 12, "hidden_size": 256, "sequence_length": 512, "every": 2}
    memory = {"peak_bytes": {"without": 4 * 10**8, "with": 10**8}, "planned_bytes": {"without": 100, "with": 24}}
    row = size | memory | {"recomputed_flops": 0.324, "time_ratio": 1.301, "time_quartiles": [1.2, 1.456]}
    shown = performance.recomputation_table(written(tmp_path, "recomputation.json", rows=[row]))
    assert (
        "| transformer, 12 x 256, 512 | 2 blocks | 400 MB | 100 MB | 0.25 | 0.24 | +32% | 1.30 (1.20 to 1.46) |"
        in shown
    )


def test_a_form_that_was_not_measured_leaves_its_cell_empty(tmp_path) -> None:
    row = pattention_row("fp32", 1.0, over_floor={"ours": 1.0}, saved_bytes={})
    table = performance.pattention_table(written(tmp_path, "pattention.json", rows=[row]))
    assert "| n/a | 1.000 (1.010 to 1.300), met | n/a | n/a |" in table


def test_the_picture_has_a_panel_for_each_dtype(tmp_path) -> None:
    rows = [pattention_row(dtype, 1.0, num_tokens=n) for dtype in ("fp32", "bf16") for n in (16, 64)]
    results = written(tmp_path, "pattention.json", rows=rows)
    assert performance.draw(results, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_generating_writes_every_page(tmp_path, monkeypatch, capsys) -> None:
    for module in (generate, performance, inspection, growth_axes, judge, formats, keys):
        page = tmp_path / module.PAGE.name
        page.write_text(module.PAGE.read_text())
        monkeypatch.setattr(module, "PAGE", page)
    monkeypatch.setattr(generate, "plans_table", lambda: "a table\n")  # tests/tools/test_docs.py makes the real one
    monkeypatch.setattr(performance, "PICTURE", tmp_path / "performance.png")
    monkeypatch.setattr(performance, "RESULTS", written(tmp_path, "pattention.json", rows=[pattention_row("fp32", 1)]))
    generate.main()
    told = capsys.readouterr().out.split()
    pages = [
        "schedules.md",
        "performance.md",
        "inspection.md",
        "growing.md",
        "judge.md",
        "formats.md",
        "keys.md",
    ]
    assert [Path(line).name for line in told] == [*pages, "performance.png"]


def test_numbers_and_goals_as_they_are_shown() -> None:
    assert [number(value) for value in (None, float("nan"), 0.1234, 1.234, 12.34, 1234.5)] == [
        *("n/a", "NaN", "0.123", "1.23", "12.3", "1,234"),
    ]
    assert (at_most(1.0, 1.0), at_most(1.01, 1.0)) == ("1.00, met", "**1.01, not met**")
    assert (at_least(2.0, 2.0), at_least(1.99, 2.0)) == ("2.00, met", "**1.99, not met**")
    assert (share_at_least(0.5, 0.5), share_at_least(0.4, 0.5)) == ("50.0 %, met", "**40.0 %, not met**")
    assert (share_at_least(None, 0.5), share_at_least(0.1, None)) == ("n/a", "10.0 %")
    assert table(("a", "b"), []) == NOT_MEASURED
    assert table(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | ---: |\n| 1 | 2 |\n"


def test_reading_data_is_held_against_its_goals(tmp_path) -> None:
    ratios = {
        "training_over_memmap": 1.6,
        "mixture_over_training": 1.19,
        "mixture_at_random_over_training_at_random": 3.0,
    }
    results = written(
        tmp_path,
        "data.json",
        tokens_per_second=dict.fromkeys(performance.READERS, 4e7) | {"training": 1.9e7},
        goal_tokens_per_second=2e7,
        ratios=ratios,
        quartiles={name: [1.0, 1.3] for name in ratios},
        goals={"training_over_memmap": 1.5, "mixture_over_training": 1.2},
    )
    shown = performance.data_table(results)
    assert "in order | **19, not met** | **1.60 (1.00 to 1.30), not met** | - |" in shown
    assert "in order | 40 | - | 1.19 (1.00 to 1.30), met |" in shown
    assert "the mixture, at random indices | 40 | - | 3.00 (1.00 to 1.30) |" in shown


def test_generating_with_a_cache_is_held_against_generating_without(tmp_path) -> None:
    row = {"case": "tiny", "num_parameters": 10, "generations": 1, "prompt_tokens": 4, "new_tokens": 60}
    speeds = {"tokens_per_second": 300.0, "tokens_per_second_without_cache": 100.0}
    rows = [
        row | speeds | {"ratio": 3.0, "ratio_range": [2.0, 4.0]},
        row | speeds | {"ratio": 0.9, "ratio_range": [0.8, 1.0]},
    ]
    shown = performance.generate_table(written(tmp_path, "generate.json", rows=rows))
    assert "| tiny | 4 + 60 | 300 | 100 | 3.00 (2.00 to 4.00), met |" in shown
    assert "**0.90 (0.80 to 1.00), not met**" in shown
