"""The report compares the ladder with its controls, on a screen and in files."""

import csv
import io
import math
from dataclasses import replace
from pathlib import Path

import pytest

from growctl.ledger.entries import BaseEntry
from growctl.ledger.file import LedgerError
from growctl.ledger.ledger import Ledger
from growctl.report.documents import report_document, stages_csv, write_report
from growctl.report.sections import remarks, report_sections
from growctl.runs.find import RunNotFoundError, find_runs, read_run
from growctl.runs_dir import ReportPaths
from growctl.text.documents import plain
from growctl.text.formatting import short_count
from stages.generate.text_samples import TextRequest, TextSample, TextSamples
from tests.growctl.invented_runs import LARGE, SCRATCH, SMALL, FakeRun, control, ladder, stage_of
from tests.growctl.report.invented_reports import run_report
from tests.growctl.report.rendered import lines_of, page_of
from tests.growctl.text.schemas import assert_follows_schema


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def test_a_stage_report_has_the_cost_and_the_jump(runs: Path) -> None:
    ladder(runs, killed_at=200)
    small, large = read_run(runs / "quick" / "ledger.db").stages
    assert small.flops == small.cumulative_flops == 1000 * SMALL.step_flops.total
    assert large.flops == pytest.approx(600 * LARGE.step_flops.total)
    assert large.replayed_flops == pytest.approx(200 * LARGE.step_flops.total)
    assert large.num_steps == 600
    assert large.cumulative_flops == small.flops + large.flops
    assert (large.train_tokens, large.num_parameters) == (600_000, 2_400_000)
    assert (large.validation_loss, large.perplexity) == (1.28, math.exp(1.28))
    assert (small.loss_before_growth, small.loss_after_growth, small.jump) == (None, None, None)
    assert (large.loss_before_growth, large.loss_after_growth, large.jump) == (1.42, 1.42, 0.0)
    assert large.spent.device_seconds == 2 * large.spent.wall_seconds > 0


def test_replayed_work_does_not_move_the_points_of_evaluations(runs: Path) -> None:
    ladder(runs, killed_at=200)
    run = read_run(runs / "quick" / "ledger.db")
    grown = [point for point in run.points if point.stage == "1-2m"]
    base = run.stages[0].flops
    assert [point.point for point in grown] == ["after_growth"] + ["interval"] * 10 + ["final"]
    assert grown[0].cumulative_flops == pytest.approx(base)
    assert grown[1].cumulative_flops == pytest.approx(base + 60 * LARGE.step_flops.total)
    assert grown[-1].cumulative_flops == pytest.approx(run.cumulative_flops)


def started(runs: Path, flops: float | None, loss_tokens: int = 5000) -> FakeRun:
    """A trained run that started from a checkpoint of that cost."""
    base = BaseEntry(
        "/base", "f" * 64, "first, stage small", 400_000, flops, validation_loss=4.0, validation_tokens=loss_tokens
    )
    return FakeRun(runs, "more", [SMALL], base=base).train(0, 1.5)


def test_the_cost_of_the_start_checkpoint_is_part_of_cumulative_flops_and_said(runs: Path) -> None:
    started(runs, 7e12)
    [run] = find_runs(runs)
    assert run.stages[0].cumulative_flops == pytest.approx(7e12 + run.stages[0].flops)
    assert (run.points[0].cumulative_flops, run.stages[0].jump) == (7e12, 0.0)
    [row] = csv.DictReader(io.StringIO(stages_csv([run])))
    assert float(row["base_flops"]) == 7e12
    what = "400k parameters, trained in run first, stage small"
    assert list(remarks(run)) == [f"Start checkpoint: 7.00e12 FLOPs, counted in FLOPs so far ({what})."]


def test_a_start_checkpoint_of_unknown_cost_is_said_to_be_not_counted(runs: Path) -> None:
    started(runs, None, loss_tokens=99)
    [run] = find_runs(runs)
    assert run.cumulative_flops == run.stages[0].flops
    assert "Its cost is not known and not counted; start.flops can give it." in next(remarks(run))
    assert run.stages[0].jump is None, "the start checkpoint's loss was measured on other tokens"
    [row] = csv.DictReader(io.StringIO(stages_csv([run])))
    assert row["base_flops"] == ""


def test_the_json_follows_its_schema_and_says_null_for_what_is_not_finite(runs: Path) -> None:
    ladder(runs)
    control(runs, 900, 1.30)
    unfinished = FakeRun(runs, "waits", [SMALL, LARGE]).train(0, float("inf"))
    document = plain(report_document(find_runs(runs)))
    assert_follows_schema(document, "report")
    found = document["runs"]
    assert [run["name"] for run in found] == ["quick", "quick-control-tokenformer-scratch-900", "waits"]
    assert (found[0]["control"], found[1]["control"]) == (None, SCRATCH)
    assert unfinished.stages[1].name == found[2]["stages"][1]["name"]
    assert found[2]["stages"][0]["validation_loss"] is None, "infinity is no JSON"
    assert found[2]["stages"][1] | {"finished": False, "validation_loss": None} == found[2]["stages"][1]


def test_names_stand_for_ladders_or_sets_with_their_controls_and_an_unknown_one_lists_the_nearest(runs: Path) -> None:
    for names in ([], ["quick"]):
        with pytest.raises(RunNotFoundError, match=r"there are no runs in .* yet"):
            find_runs(runs, names)
    ladder(runs, name="alone")
    for seed in (0, 1):
        FakeRun(runs, f"quick-seed-{seed}", [SMALL], run_set=("quick", {"seed": seed})).train(0, 1.3)
    for budget in (500, 900):
        control(runs, budget, 1.30, of="quick-seed-1")
    seeds, controls = ["quick-seed-0", "quick-seed-1"], [f"quick-seed-1-control-{SCRATCH}-{n}" for n in (500, 900)]
    for asked, found in (
        ([], ["alone", *seeds, *controls]),
        (["quick"], seeds + controls),
        (["quick-seed-1"], [seeds[1], *controls]),
        ([controls[1], "alone"], [controls[1], "alone"]),
    ):
        assert [run.name for run in find_runs(runs, asked)] == found
    for unknown in ("quack", "quikc"):
        with pytest.raises(RunNotFoundError, match=rf"no run '{unknown}' in .*; the nearest (is|are) .*\bquick\b"):
            find_runs(runs, [unknown])


def test_an_unreadable_ledger_stops_only_reports_that_need_it(runs: Path) -> None:
    ladder(runs)
    ladder(runs, name="alone")
    control(runs, 500, 1.30).path.write_bytes(b"torn" * 500)
    assert [run.name for run in find_runs(runs, ["alone"])] == ["alone"]
    for names in ([], ["quick"], [f"quick-control-{SCRATCH}-500"]):
        with pytest.raises(LedgerError, match=f"{SCRATCH}-500"):
            find_runs(runs, names)


def large_report(runs: Path) -> Path:
    """Counts of the paper's size and long names: the widest cells that a table must hold."""
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


def test_the_table_fits_its_width_without_cutting_anything(runs: Path) -> None:
    lines = lines_of(report_sections(find_runs(large_report(runs))), width=80)
    assert max(len(line) for line in lines if "growctl run" not in line) <= 80
    text = " ".join(lines)
    assert "…" not in text
    for words in ("1.31B", "754M", "60M", "2-754m", "Replayed after interruptions"):
        assert words in text
    assert "training 1.31B parameters from scratch takes at most " in text


def test_the_files_are_the_page_the_chart_and_the_table(runs: Path, tmp_path: Path) -> None:
    ladder(runs, killed_at=200)
    found = find_runs(runs)
    write_report(found, report_sections(found), ReportPaths(tmp_path / "report"))
    page = (tmp_path / "report/report.html").read_text()
    assert "Replayed after interruptions" in page
    files = {"report.html", "compute-against-perplexity.png", "stages.csv"}
    assert {path.name for path in (tmp_path / "report").iterdir()} == files


def test_the_csv_has_a_line_for_each_stage(runs: Path) -> None:
    ladder(runs, None, name='of "two", stages')
    rows = list(csv.DictReader(io.StringIO(stages_csv(find_runs(runs)))))
    assert [(row["run"], row["stage"], row["finished"]) for row in rows] == [
        ('of "two", stages', "0-800k", "True"),
        ('of "two", stages', "1-2m", "False"),
    ]
    assert float(rows[0]["flops"]) == 1000 * SMALL.step_flops.total
    assert rows[1]["validation_loss"] == ""


def test_few_or_no_points_still_make_a_chart_and_a_page(runs: Path) -> None:
    FakeRun(runs, "diverged", [SMALL]).train(0, float("inf"))
    assert "has no final loss" not in page_of(find_runs(runs))
    FakeRun(runs, "new $run_ with $", [SMALL, LARGE])
    FakeRun(runs, "_one", [LARGE]).train(0, 1.4)
    assert "data:image/svg+xml" in page_of(find_runs(runs))


def test_the_newest_anomalies_are_listed_and_all_are_in_the_document(runs: Path) -> None:
    run = ladder(runs)
    head = {"event": "anomaly", "attempt": 1, "step": 70}
    spike = {"kind": "spike", "value": 9.5, "threshold": 6.0, "action": "rollback", "first_step": 60, "num_steps": 20}
    none = {"kind": "non_finite", "value": None, "threshold": None, "action": "stop"}
    records = [head | spike | {"seconds": 1.0 + n} for n in range(11)] + [head | none | {"seconds": 90.0}]
    with Ledger(run.path) as ledger:
        ledger.books("1-2m").sync(records)
    found = find_runs(runs)
    lines = [line.split() for line in lines_of(report_sections(found))]
    assert lines.count(["1-2m", "1", "70", "spike", "9.5", "6", "rollback", "20"]) == 9
    assert ["1-2m", "1", "70", "non-finite", "-", "-", "stop", "-"] in lines
    assert ["2", "earlier", "anomalies", "are", "in", "the", "JSON", "report."] in lines
    anomalies = plain(report_document(found))["runs"][0]["anomalies"]
    assert len(anomalies) == 12
    stage, anomaly = anomalies[-1]
    assert (stage, anomaly["seconds"], anomaly["action"]) == ("1-2m", 90.0, "stop")
    assert (anomaly["kind"], anomaly["value"]) == ("non_finite", None)
    ladder(runs, name="well")
    assert "anomalies" not in [section.key for section in report_sections(find_runs(runs, ["well"]))]


def test_the_texts_of_all_stages_stand_below_their_prompt(runs: Path) -> None:
    ladder(runs)
    control(runs, 900, 1.30)
    for stage, text in (("0-0-800k", "<b>one\x1b[2J"), ("1-1-2m", "two\nlines")):
        written = TextSamples(
            checkpoint="f00d",
            request=TextRequest(prompts=("def ",)),
            samples=(TextSample(prompt="def ", text=text, finish_reason="length"),),
        )
        path = runs / "quick/stages" / stage / "samples.json"
        path.parent.mkdir(parents=True)
        path.write_text(written.model_dump_json())
    damaged = runs / "quick-control-tokenformer-scratch-900/stages/0-0-2m/samples.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("damaged")
    said = lines_of(report_sections(find_runs(runs)), details=True)
    first = said.index("Text after 'def '") + 1
    assert said[first : first + 5] == ["quick/0-800k", "def <b>one\\x1b[2J", "quick/1-2m", "def two", "lines"]
    final = runs / "quick/stages/1-1-2m/final"
    final.mkdir()
    (final / "manifest.json").write_text("of another training")
    said = lines_of(report_sections(find_runs(runs)), details=True)
    assert "quick/1-2m" not in said[said.index("Text after 'def '") :]


def test_losses_at_other_contexts_than_the_last_stages_are_shown_beside_the_comparable_ones() -> None:
    report = run_report("ladder", 2.0)
    first, last = report.stages
    stages = (replace(first, sequence_length=256, own_context_loss=3.1), replace(last, sequence_length=1024))
    assert list(remarks(replace(report, stages=stages))) == [
        "Losses are measured at the last stage's context, 1,024 tokens. At a stage's own context: 3.1000 for s1000 at "
        "256 (nats per token)."
    ]
    assert list(remarks(replace(report, stages=(replace(first, sequence_length=1024), stages[1])))) == []
