"""The report: the ladder against its controls, said plainly, on a screen and in files."""

import csv
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from growctl.ledger import Ledger, LedgerError, RunEntry, StageEntry
from growctl.numbers import short_count
from growctl.report.analysis import Comparison, RunNotFoundError, compare, find_runs, flops_to_loss, read_run, to_json
from growctl.report.page import render_page, stages_csv, write_report
from growctl.report.plots import png, svg
from growctl.report.table import print_report, scientific, verdicts
from model.flops import Flops

TOKENS_PER_STEP = 1000


def stage_of(name: str, num_parameters: int, num_steps: int) -> StageEntry:
    flops = Flops(5.0 * num_parameters * TOKENS_PER_STEP, 0.5 * num_parameters * TOKENS_PER_STEP, 0.0)
    shape = (num_parameters, 1000, num_steps * TOKENS_PER_STEP, num_steps, TOKENS_PER_STEP)
    return StageEntry(name, *shape, step_flops=flops, evaluation_flops_per_token=2.0 * num_parameters)


class FakeRun:
    """A run directory with a ledger, its stages trained on invented losses."""

    def __init__(self, runs: Path, name: str, stages: list[StageEntry], kind: str | None = None, data: str = "f00d"):
        self.stages, self.path = stages, runs / name / "ledger.db"
        self.path.parent.mkdir(parents=True)
        ladder = name.split("-control-")[0] if kind else None
        with Ledger.open(self.path) as ledger:
            ledger.record_run(RunEntry(name, "quickstart", kind, ladder, 1, "data", data), stages)

    def train(self, index: int, final: float | None, *, start: float = 4.0, killed_at: int = 0) -> "FakeRun":
        """Trains stage `index` from loss `start` to `final` (None: it dies before); `killed_at` a step, once."""
        stage = self.stages[index]
        records: list[dict[str, Any]] = []

        def write(event: str, attempt: int, step: int, **values: Any) -> None:
            records.append(
                {"event": event, "attempt": attempt, "step": step, "seconds": 1.5 * len(records) + 1} | values
            )

        def evaluate(attempt: int, step: int, point: str, loss: float) -> None:
            figures = {"loss": loss, "perplexity": math.exp(loss), "bits_per_byte": loss / math.log(2)}
            write("evaluation", attempt, step, point=point, num_tokens=5000, precision="fp32", **figures)

        def attempt(number: int, first: int, last: int) -> None:
            device = {"device": "cpu", "num_devices": 2, "precision": "bf16", "zero_stage": 1}
            write("start", number, first, resumed_from=first or None, **device)
            if index and not first:
                evaluate(number, 0, "after_growth", start)
            for step in range(first + stage.num_steps // 10, last + 1, max(1, stage.num_steps // 10)):
                decay = math.exp(-3.0 * step / stage.num_steps)
                evaluate(number, step, "interval", (final or 2.0) + 0.05 + (start - (final or 2.0)) * decay * 0.95)

        if killed_at:
            attempt(1, 0, killed_at)
            write("train", 1, killed_at)
        attempt(2 if killed_at else 1, 0, stage.num_steps if final else stage.num_steps // 2)
        if final:
            evaluate(2 if killed_at else 1, stage.num_steps, "final", final)
            write("end", 2 if killed_at else 1, stage.num_steps)
        with Ledger.open(self.path) as ledger:
            ledger.sync(stage.name, records, attempt_over=final is None)
        return self


SMALL, LARGE = stage_of("0-800k", 800_000, 1000), stage_of("1-2m", 2_400_000, 600)
SCRATCH = "tokenformer-scratch"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def ladder(runs: Path, final: float | None = 1.28, name: str = "quick", **train: Any) -> FakeRun:
    return FakeRun(runs, name, [SMALL, LARGE]).train(0, 1.42).train(1, final, start=1.42, **train)


def control(
    runs: Path, budget: int, final: float | None, of: str = "quick", kind: str = SCRATCH, **how: Any
) -> FakeRun:
    stage = stage_of("0-2m", 2_400_000, budget)
    return FakeRun(runs, f"{of}-control-{kind}-{budget}", [stage], kind, **how).train(0, final)


def only_comparison(runs: Path) -> Comparison:
    found = find_runs(runs, ["quick"])
    [comparison] = compare(found[0], found)
    return comparison


def said(comparison: Comparison) -> str:
    return " ".join(comparison.verdict)


def test_a_stage_says_what_it_cost_and_what_growing_did(runs: Path) -> None:
    ladder(runs, killed_at=200)
    small, large = read_run(runs / "quick" / "ledger.db").stages
    assert small.flops == small.cumulative_flops == 1000 * SMALL.step_flops.total
    assert large.flops == pytest.approx(780 * LARGE.step_flops.total)
    assert large.replayed_flops == pytest.approx(180 * LARGE.step_flops.total)
    assert large.cumulative_flops == small.flops + large.flops
    assert (large.train_tokens, large.num_parameters) == (600_000, 2_400_000)
    assert (large.validation_loss, large.perplexity) == (1.28, math.exp(1.28))
    assert (small.loss_before_growth, small.loss_after_growth, small.jump) == (None, None, None)
    assert (large.loss_before_growth, large.loss_after_growth, large.jump) == (1.42, 1.42, 0.0)
    assert large.device_seconds == 2 * large.wall_seconds > 0


def test_points_lie_where_the_run_had_spent_that_much(runs: Path) -> None:
    ladder(runs, killed_at=200)
    run = read_run(runs / "quick" / "ledger.db")
    grown = [point for point in run.points if point.stage == "1-2m"]
    base, replayed = run.stages[0].flops, run.stages[1].replayed_flops
    assert [point.point for point in grown] == ["after_growth"] + ["interval"] * 10 + ["final"]
    assert grown[0].cumulative_flops == pytest.approx(base + replayed)
    assert grown[1].cumulative_flops == pytest.approx(base + replayed + 60 * LARGE.step_flops.total)
    assert grown[-1].cumulative_flops == pytest.approx(run.cumulative_flops)


def test_the_json_has_exactly_these_keys(runs: Path) -> None:
    ladder(runs)
    control(runs, 900, 1.30)
    unfinished = FakeRun(runs, "waits", [SMALL, LARGE]).train(0, float("inf"))
    documents = json.loads(json.dumps(to_json(find_runs(runs)), allow_nan=False))
    assert isinstance(documents, list)
    assert [document["name"] for document in documents] == ["quick", "quick-control-tokenformer-scratch-900", "waits"]
    assert list(documents[0]) == ["name", "schedule", "control", "stages", "anomalies", "comparisons"]
    assert list(documents[1]) == ["name", "schedule", "control", "stages", "anomalies"]
    assert (documents[0]["control"], documents[1]["control"]) == (None, SCRATCH)
    promised = ["name", "num_parameters", "train_tokens", "flops", "cumulative_flops", "wall_seconds"]
    promised += ["validation_loss", "perplexity", "loss_before_growth", "loss_after_growth"]
    more = ["device_seconds", "replayed_flops", "replayed_device_seconds", "bits_per_byte", "finished"]
    for document in documents:
        for stage in document["stages"]:
            assert list(stage) == promised + more
    assert unfinished.stages[1].name == documents[2]["stages"][1]["name"]
    assert documents[2]["stages"][0]["validation_loss"] is None, "infinity is no JSON"
    assert documents[2]["stages"][1] | {"finished": False, "validation_loss": None} == documents[2]["stages"][1]
    comparison = documents[0]["comparisons"][0]
    keys = ["control", "num_parameters", "control_runs", "flops_to_equal_loss", "saving", "equal_flops", "verdict"]
    assert list(comparison) == keys


def test_between_two_budgets_the_saving_is_interpolated_in_log_flops(runs: Path) -> None:
    ladder(runs)
    spent = 1000 * 800_000 + 600 * 2_400_000  # in units of 5500 FLOPs
    for budget, loss in ((700, 1.36), (1400, 1.32), (2800, 1.24)):
        control(runs, budget, loss)
    comparison = only_comparison(runs)
    equal = math.sqrt(1400 * 2800) * 2_400_000
    assert comparison.flops_to_equal_loss == pytest.approx(equal * 5500)
    assert comparison.saving == pytest.approx(equal / spent)
    assert comparison.control_runs == tuple(f"quick-control-{SCRATCH}-{budget}" for budget in (700, 1400, 2800))
    assert "growing won" in said(comparison)
    assert f"{equal / spent:.2f}x" in said(comparison)
    assert "Caution" not in said(comparison)


def test_where_growing_lost_it_is_said(runs: Path) -> None:
    ladder(runs)
    control(runs, 500, 1.30)
    control(runs, 933, 1.268)  # 2240e6 units of FLOPs, against 2239.2e6
    comparison = only_comparison(runs)
    assert comparison.saving is not None
    assert comparison.saving < 1
    assert f"At equal loss growing lost: the control needs {scientific(comparison.flops_to_equal_loss or 0)}" in said(
        comparison
    )
    assert comparison.equal_flops is not None
    assert comparison.equal_flops.loss_difference == pytest.approx(0.012)
    assert "growing lost 0.012 nats against quick-control-tokenformer-scratch-933" in said(comparison)
    assert "(perplexity 3.597 against 3.554, 1.000x the FLOPs)" in said(comparison)
    assert "only 2 control budgets" in said(comparison)


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ((1.40, 1.30), "At equal loss growing won (not bracketed): no control came down to the ladder's loss"),
        ((1.27, 1.20), "At equal loss growing lost (not bracketed): quick-control-tokenformer-scratch-500 ended below"),
    ],
)
def test_outside_the_measured_budgets_nothing_is_extrapolated(
    runs: Path, losses: tuple[float, float], words: str
) -> None:
    ladder(runs)
    for budget, loss in zip((500, 2000), losses, strict=True):
        control(runs, budget, loss)
    comparison = only_comparison(runs)
    assert (comparison.flops_to_equal_loss, comparison.saving) == (None, None)
    assert "not bracketed" in said(comparison)
    assert words in said(comparison)
    assert "no control's FLOPs are within 2%" in said(comparison)


@given(
    curve=st.lists(st.tuples(st.floats(1e10, 1e20), st.floats(0.5, 5.0)), min_size=1, max_size=6),
    loss=st.floats(0.5, 5.0),
)
def test_flops_to_equal_loss_lie_between_measured_points(curve: list[tuple[float, float]], loss: float) -> None:
    curve.sort()
    flops = flops_to_loss(curve, loss)
    if flops is None:
        assert loss < min(y for _, y in curve) or curve[0][1] < loss
    else:
        assert curve[0][0] * (1 - 1e-9) <= flops <= curve[-1][0] * (1 + 1e-9)
        assert any(y >= loss for x, y in curve if x <= flops * (1 + 1e-9))
        assert any(y <= loss for x, y in curve if x >= flops * (1 - 1e-9))


def test_a_control_whose_loss_rises_counts_at_its_first_crossing_with_a_caution(runs: Path) -> None:
    ladder(runs)
    for budget, loss in ((500, 1.35), (1000, 1.25), (2000, 1.33), (4000, 1.20)):
        control(runs, budget, loss)
    comparison = only_comparison(runs)
    assert comparison.flops_to_equal_loss == pytest.approx(500 * 2**0.7 * 2_400_000 * 5500)
    assert "rises with its budget" in said(comparison)


def test_what_does_not_count_is_named(runs: Path) -> None:
    ladder(runs)
    control(runs, 500, 1.30)
    control(runs, 900, None)
    control(runs, 2000, 1.20, data="other")
    comparison = only_comparison(runs)
    assert comparison.control_runs == (f"quick-control-{SCRATCH}-500",)
    assert comparison.saving is None
    assert f"quick-control-{SCRATCH}-900 does not count: it is not finished" in said(comparison)
    assert f"quick-control-{SCRATCH}-2000 does not count: it was trained on other data" in said(comparison)


def test_an_unfinished_ladder_an_unfinished_control_and_none_at_all(runs: Path) -> None:
    ladder(runs, None)
    control(runs, 500, 1.30)
    comparison = only_comparison(runs)
    assert comparison.saving is comparison.equal_flops is None
    assert said(comparison).startswith("Nothing to compare yet: quick is not finished.")
    ladder(runs, name="alone")
    found = find_runs(runs, ["alone"])
    assert compare(found[0], found) == []
    assert "no controls" in verdicts(found)[0][1][0]
    ladder(runs, name="early")
    control(runs, 500, None, of="early")
    found = find_runs(runs, ["early"])
    assert "no control counts" in verdicts(found)[0][1][0]


def test_kinds_and_sizes_of_controls_are_curves_of_their_own(runs: Path) -> None:
    ladder(runs)
    control(runs, 500, 1.30)
    control(runs, 500, 1.30, kind="transformer-scratch")
    small = stage_of("0-800k", 800_000, 2800)
    FakeRun(runs, f"quick-control-{SCRATCH}-0-800k-2800", [small], SCRATCH).train(0, 1.2)
    found = find_runs(runs)
    curves = {(c.control, c.num_parameters, len(c.control_runs)) for c in compare(found[0], found)}
    assert curves == {(SCRATCH, 2_400_000, 1), (SCRATCH, 800_000, 1), ("transformer-scratch", 2_400_000, 1)}


def test_against_another_way_of_growing_it_is_the_ladder_that_won_or_lost(runs: Path) -> None:
    ladder(runs, 1.28)
    control(runs, 933, 1.27, kind="single-jump")
    assert "At equal FLOPs this ladder lost 0.010 nats against quick-control-single-jump-933" in said(
        only_comparison(runs)
    )
    assert "growing" not in said(only_comparison(runs))


def from_scratch(runs: Path, size: str, num_parameters: int, steps: int, final: float | None) -> FakeRun:
    """One size of the ladder, as the control best-scratch trains it."""
    name = f"quick-control-best-scratch-{size}-{steps}"
    return FakeRun(runs, name, [stage_of(size, num_parameters, steps)], "best-scratch").train(0, final)


def test_best_scratch_counts_with_the_size_that_ended_best_at_each_budget(runs: Path) -> None:
    ladder(runs, 1.28)
    for steps, small, large in ((1400, 1.40, 1.50), (2800, 1.27, 1.35), (5600, 1.26, 1.20)):
        from_scratch(runs, "800k", 800_000, steps, small)
        from_scratch(runs, "2m", 2_400_000, round(steps / 3), large)
    found = find_runs(runs, ["quick"])
    [comparison] = compare(found[0], found)
    assert comparison.num_parameters is None
    assert [name.removeprefix("quick-control-best-scratch-") for name in comparison.control_runs] == [
        *("800k-1400", "800k-2800", "2m-1867")
    ]
    assert comparison.equal_flops is not None
    assert comparison.equal_flops.loss_difference == pytest.approx(0.01)
    assert "growing lost 0.010 nats against quick-control-best-scratch-800k-2800" in said(comparison)
    assert verdicts(found)[0][0] == "quick against the best size from scratch"


def test_best_scratch_counts_the_last_sizes_own_control_and_misses_what_did_not_finish(runs: Path) -> None:
    ladder(runs, 1.28)
    control(runs, 933, 1.31)
    from_scratch(runs, "800k", 800_000, 2800, 1.36)
    from_scratch(runs, "800k", 800_000, 5600, 1.30)
    found = find_runs(runs, ["quick"])
    best = next(comparison for comparison in compare(found[0], found) if comparison.control == "best-scratch")
    assert best.control_runs == ("quick-control-tokenformer-scratch-933", "quick-control-best-scratch-800k-5600")
    assert "Caution: only 1 of the ladder's 2 sizes count at 2.46e13 FLOPs." in said(best)
    assert "2 sizes count at 1.23e13" not in said(best)


def test_a_ladder_brings_its_controls_and_a_wrong_name_the_nearest(runs: Path) -> None:
    for names in ([], ["quick"]):
        with pytest.raises(RunNotFoundError, match=r"there are no runs in .* yet"):
            find_runs(runs, names)
    ladder(runs)
    ladder(runs, name="alone")
    control(runs, 500, 1.30)
    control(runs, 900, 1.28)
    prefix = f"quick-control-{SCRATCH}"
    assert [run.name for run in find_runs(runs)] == ["alone", "quick", f"{prefix}-500", f"{prefix}-900"]
    assert [run.name for run in find_runs(runs, ["quick"])] == ["quick", f"{prefix}-500", f"{prefix}-900"]
    assert [run.name for run in find_runs(runs, [f"{prefix}-900", "alone"])] == [f"{prefix}-900", "alone"]
    with pytest.raises(RunNotFoundError, match=r"no run 'quikc' in .*; the nearest are quick"):
        find_runs(runs, ["quikc"])


def test_an_unreadable_ledger_stops_only_reports_that_need_it(runs: Path) -> None:
    ladder(runs)
    ladder(runs, name="alone")
    control(runs, 500, 1.30).path.write_bytes(b"torn" * 500)
    assert [run.name for run in find_runs(runs, ["alone"])] == ["alone"]
    for names in ([], ["quick"], [f"quick-control-{SCRATCH}-500"]):
        with pytest.raises(LedgerError, match=f"{SCRATCH}-500"):
            find_runs(runs, names)


def large_report(runs: Path) -> Path:
    """Paper-sized counts and long names: what a table must hold."""
    name = "openwebtext-four-stages-and-a-rather-long-name"
    sizes = ((123_600_000, 20_000), (354_200_000, 30_000), (753_800_000, 30_000), (1_310_000_000, 60_000))
    stages = [stage_of(f"{i}-{short_count(size).lower()}", size, steps) for i, (size, steps) in enumerate(sizes)]
    run = FakeRun(runs, name, stages)
    for i, loss in enumerate((2.80, 2.63, 2.52, 2.45)):
        run.train(i, loss, start=2.83 if i else 10.8, killed_at=18_000 if i == 2 else 0)
    for budget, loss in ((20_000, 2.62), (40_000, 2.53), (80_000, 2.44)):
        FakeRun(
            runs, f"{name}-control-{SCRATCH}-{budget}", [stage_of("0-1.31b", 1_310_000_000, budget)], SCRATCH
        ).train(0, loss, start=10.8)
    return runs


def printed(found: list[Any], width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    print_report(found, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 100])
def test_the_table_holds_everything_at_its_width(runs: Path, width: int) -> None:
    text = printed(find_runs(large_report(runs)), width)
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= width
    for words in ("1.31B", "754M", "60M", "2-754m", "Replayed after interruptions"):
        assert words in text
    assert "At equal loss growing lost: the control needs" in " ".join(text.split())


def test_the_table_shows_markup_in_names_as_it_is(runs: Path) -> None:
    ladder(runs, name="a[red]b")
    assert "a[red]b" in printed(find_runs(runs))


def test_the_page_needs_nothing_from_elsewhere_and_escapes_names(runs: Path, tmp_path: Path) -> None:
    ladder(runs, name="<script>alert(1)&", killed_at=200)
    control(runs, 500, 1.30, of="<script>alert(1)&")
    page = write_report(find_runs(runs), tmp_path / "report").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&amp;" in page
    assert not re.search(r"https?://|src=|@import|url\((?!#)", page)
    assert "growing" in page
    assert "Replayed after interruptions" in page
    assert {path.name for path in (tmp_path / "report").iterdir()} == {
        *("report.html", "compute_vs_perplexity.png", "stages.csv")
    }


def test_the_csv_has_a_line_for_each_stage(runs: Path) -> None:
    ladder(runs, None, name='of "two", stages')
    rows = list(csv.DictReader(io.StringIO(stages_csv(find_runs(runs)))))
    assert [(row["run"], row["stage"], row["finished"]) for row in rows] == [
        ('of "two", stages', "0-800k", "True"),
        ('of "two", stages', "1-2m", "False"),
    ]
    assert float(rows[0]["flops"]) == 1000 * SMALL.step_flops.total
    assert rows[1]["validation_loss"] == ""


def test_the_chart_is_a_png_of_1200_by_750(runs: Path) -> None:
    data = png(find_runs(large_report(runs)))
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert (int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")) == (1200, 750)


def test_few_or_no_points_still_make_a_chart_and_a_page(runs: Path) -> None:
    assert png([]).startswith(b"\x89PNG")
    FakeRun(runs, "diverged", [SMALL]).train(0, float("inf"))
    assert "has no final loss" not in render_page(find_runs(runs))
    control(runs, 500, 1.30, of="diverged")
    assert "Nothing to compare yet: diverged has no final loss." in render_page(find_runs(runs))
    FakeRun(runs, "new $run_ with $", [SMALL, LARGE])
    assert "</svg>" in svg(find_runs(runs))
    FakeRun(runs, "_one", [SMALL]).train(0, 1.4)
    assert "-" in printed(find_runs(runs))
    assert "no controls" in render_page(find_runs(runs))


def test_flops_are_printed_for_people() -> None:
    assert (scientific(1.234e15), scientific(0)) == ("1.23e15", "0")


def test_numbers_that_went_wrong_are_said_on_screen_page_and_in_json(runs: Path) -> None:
    run = ladder(runs)
    head = {"event": "anomaly", "attempt": 1, "step": 70}
    spike = {"kind": "spike", "value": 9.5, "threshold": 6.0, "action": "rollback", "first_step": 60, "num_steps": 20}
    none = {"kind": "non_finite", "value": math.inf, "threshold": None, "action": "<stop>"}
    records = [head | spike | {"seconds": 1.0 + n} for n in range(11)] + [head | none | {"seconds": 90.0}]
    with Ledger.open(run.path) as ledger:
        ledger.sync("1-2m", records)
    found = find_runs(runs)
    out = io.StringIO()
    print_report(found, Console(file=out, width=120))
    said = " ".join(out.getvalue().split())
    assert "quick: numbers that went wrong 2 earlier ones are in the JSON report. 1-2m, attempt 1" in said
    spike_said = (
        "1-2m, attempt 1, step 70: a spike, 9.5 against 6; rolled back, without the data of 20 steps from 60 on."
    )
    assert said.count(spike_said) == 9
    assert "a number that was none; <stop>." in said
    page = render_page(found)
    assert spike_said in page
    assert "&lt;stop&gt;" in page
    document = json.loads(json.dumps(to_json(found), allow_nan=False))[0]
    assert len(document["anomalies"]) == 12
    stop = {key: document["anomalies"][-1][key] for key in ("stage", "seconds", "kind", "value", "action")}
    assert stop == {"stage": "1-2m", "seconds": 90.0, "kind": "non_finite", "value": None, "action": "<stop>"}
    ladder(runs, name="well")
    assert "went wrong" not in render_page(find_runs(runs, ["well"]))
