"""The tables and the picture of docs/growing.md about depth and tokens."""

import json
import math

import pytest

from tools.growth_axes import GrowthAxes, arm_table, draw, flops_from_scratch, saving

MACHINE = {"cpu": "a CPU", "cores": 2, "torch": "2.13.0", "python": "3.11", "system": "Linux"}
ONE, FULL = ({"layers": layers, "attention_tokens": 8, "ffn_tokens": 32} for layers in (1, 4))


def row(kind, sizes, losses, until=(), budget=1.0, flops=100.0, jumps=()):
    by_seed = {str(seed): {"loss": loss, "flops": flops * budget, "jumps": jumps} for seed, loss in enumerate(losses)}
    name = f"{kind}-{len(sizes)}-{budget}"
    common = {"arm": 20, "name": name, "kind": kind, "sizes": sizes, "until": until, "budget": budget}
    return common | {"tokens": 2_700_000, "peak": 4e-3, "tried": {"0.004": losses[0]}, "by_seed": by_seed}


@pytest.fixture
def results(tmp_path):
    rows = [
        row("scratch", [FULL], [3.0, 3.2]),
        row("scratch", [FULL], [2.8, 3.0], budget=2.0),
        row("scratch", [ONE], [3.3, 3.3]),
        row("append", [ONE, FULL], [2.9, 3.1], until=[0.8], jumps=[0.0]),
        row("copy-stack", [ONE, FULL], [3.5, 3.1], until=[0.5], jumps=[1.25]),
    ]
    document = {"date": "2026-11-23", "machine": MACHINE, "parameters": 1000, "rows": rows}
    (tmp_path / "growth_axes.json").write_text(json.dumps(document))
    return tmp_path


def test_flops_are_interpolated_between_measured_points_and_never_beyond():
    curve = [(1e3, 4.0), (1e5, 3.0), (1e6, 2.5)]
    assert flops_from_scratch(curve, 3.5) == pytest.approx(1e4)
    assert flops_from_scratch(curve, 2.5) == pytest.approx(1e6)
    assert flops_from_scratch(curve, 4.1) is None
    assert flops_from_scratch(curve, 2.4) is None


def test_a_saving_reads_the_mean_loss_off_the_curve_of_mean_losses(results):
    found = GrowthAxes.model_validate_json((results / "growth_axes.json").read_bytes())
    append, copied = (next(row for row in found.rows if row.kind == kind) for kind in ("append", "copy-stack"))
    assert found.curve(20) == [(100.0, pytest.approx(3.1)), (200.0, pytest.approx(2.9))]
    assert saving(found, append) == pytest.approx(math.sqrt(2))
    assert saving(found, copied) is None  # above the curve


def test_the_table_lists_the_rows_of_one_budget_from_the_best_to_the_worst(results):
    lines = arm_table(20, results).splitlines()[2:]
    assert [line.split(" | ")[0] for line in lines] == [
        "| depth, appended: 1 layer x 8 to 80 %, then 4 layers x 8",
        "| **4 layers x 8, from scratch**",
        "| **1 layer x 8, from scratch**",
        "| depth, copied: 1 layer x 8 to 50 %, then 4 layers x 8",
    ]
    assert lines[0].endswith("| 2.7M | 4e-3 | 0 | 3.0000 | 2.9000, 3.1000 | 1.41x |")
    assert "| +1.250 |" in lines[3]


def test_without_results_the_page_says_so_and_nothing_is_drawn(tmp_path):
    assert arm_table(20, tmp_path) == "Not yet measured.\n"
    assert not draw(tmp_path, tmp_path / "picture.png")


def test_a_picture_is_drawn(results):
    assert draw(results, results / "picture.png")
    assert (results / "picture.png").stat().st_size > 10_000
