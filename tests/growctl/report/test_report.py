"""The report compares the ladder with its controls, on a screen and in files."""

import csv
import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from growctl.ledger.entries import BaseEntry
from growctl.ledger.file import LedgerError
from growctl.ledger.ledger import Ledger
from growctl.report.documents import report_document, stages_csv, write_report
from growctl.report.sections import remarks, report_sections
from growctl.runs.find import RunNotFoundError, find_runs, read_run
from growctl.runs_dir import ReportPaths
from growctl.text.console import Terminal
from growctl.text.documents import plain
from growctl.text.formatting import scientific, short_count
from growctl.text.terminal import print_sections
from stages.generate.text_samples import TextRequest, TextSample, TextSamples
from tests.growctl.invented_runs import LARGE, SCRATCH, SMALL, FakeRun, control, ladder, stage_of
from tests.growctl.report.invented_reports import run_report
from tests.growctl.report.parsed import ParsedPage
from tests.growctl.report.rendered import page_of
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


def test_the_cost_of_the_start_checkpoint_is_part_of_cumulative_flops_and_said_in_every_format(runs: Path) -> None:
    started(runs, 7e12)
    [run] = find_runs(runs)
    assert run.stages[0].cumulative_flops == pytest.approx(7e12 + run.stages[0].flops)
    assert run.points[0].cumulative_flops == 7e12
    assert run.stages[0].jump == 0.0
    [document] = report_document([run]).runs
    assert document.base is not None
    assert (document.base.flops, document.base.run) == (7e12, "first, stage small")
    [row] = csv.DictReader(io.StringIO(stages_csv([run])))
    assert float(row["base_flops"]) == 7e12
    what = "400k parameters, trained in run first, stage small"
    line = f"Start checkpoint: 7.00e12 FLOPs, counted in FLOPs so far ({what})."
    assert list(remarks(run)) == [line]
    assert line in page_of([run])


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


def test_the_name_of_a_set_stands_for_its_ladders_and_their_controls(runs: Path) -> None:
    for seed in (0, 1):
        FakeRun(runs, f"quick-seed-{seed}", [SMALL], run_set=("quick", {"seed": seed})).train(0, 1.3)
    control(runs, 500, 1.30, of="quick-seed-1")
    ladder(runs, name="alone")
    names = ["quick-seed-0", "quick-seed-1", f"quick-seed-1-control-{SCRATCH}-500"]
    assert [run.name for run in find_runs(runs, ["quick"])] == names
    with pytest.raises(RunNotFoundError, match=r"no run 'quack' in .*; the nearest (is|are) .*\bquick\b"):
        find_runs(runs, ["quack"])


def test_naming_a_ladder_includes_its_controls_and_an_unknown_name_lists_the_nearest(runs: Path) -> None:
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
    with pytest.raises(RunNotFoundError, match=r"no run 'quikc' in .*; the nearest is quick"):
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


def page_written(found: list[Any], paths: ReportPaths) -> Path:
    write_report(found, report_sections(found), paths)
    return paths.page


def printed(found: list[Any], width: int = 100, *, details: bool = False) -> str:
    console = Terminal(width=width, file=io.StringIO(), color_system=None)
    print_sections(report_sections(found), console, details=details)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 100])
def test_the_table_fits_its_width_without_cutting_anything(runs: Path, width: int) -> None:
    text = printed(find_runs(large_report(runs)), width)
    assert "…" not in text
    assert max(len(line) for line in text.splitlines() if "growctl run" not in line) <= width
    for words in ("1.31B", "754M", "60M", "2-754m", "Replayed after interruptions"):
        assert words in text
    assert "training 1.31B parameters from scratch takes at most " in " ".join(text.split())


def test_the_table_shows_markup_in_names_unchanged(runs: Path) -> None:
    ladder(runs, name="a[red]b")
    assert "a[red]b" in printed(find_runs(runs))


def test_the_files_are_the_page_the_chart_and_the_table_and_the_page_escapes_names(runs: Path, tmp_path: Path) -> None:
    ladder(runs, name="<script>alert(1)&", killed_at=200)
    control(runs, 500, 1.30, of="<script>alert(1)&")
    page = page_written(find_runs(runs), ReportPaths(tmp_path / "report")).read_text()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&amp;" in page
    assert "growing" in page
    assert "Replayed after interruptions" in page
    assert {path.name for path in (tmp_path / "report").iterdir()} == {
        *("report.html", "compute-against-perplexity.png", "stages.csv")
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


def test_few_or_no_points_still_make_a_chart_and_a_page(runs: Path) -> None:
    FakeRun(runs, "diverged", [SMALL]).train(0, float("inf"))
    assert "has no final loss" not in page_of(find_runs(runs))
    control(runs, 500, 1.30, of="diverged")
    assert "Not known: the ladder diverged with 1 seed of 1." in page_of(find_runs(runs))
    FakeRun(runs, "new $run_ with $", [SMALL, LARGE])
    assert "data:image/svg+xml" in page_of(find_runs(runs))
    FakeRun(runs, "_one", [LARGE]).train(0, 1.4)
    assert "-" in printed(find_runs(runs))
    assert "no controls" in page_of(find_runs(runs))


def test_flops_are_printed_for_people() -> None:
    assert (scientific(1.234e15), scientific(0)) == ("1.23e15", "0")


def test_anomalies_appear_on_screen_on_the_page_and_in_json(runs: Path) -> None:
    run = ladder(runs)
    head = {"event": "anomaly", "attempt": 1, "step": 70}
    spike = {"kind": "spike", "value": 9.5, "threshold": 6.0, "action": "rollback", "first_step": 60, "num_steps": 20}
    none = {"kind": "non_finite", "value": None, "threshold": None, "action": "<stop>"}
    records = [head | spike | {"seconds": 1.0 + n} for n in range(11)] + [head | none | {"seconds": 90.0}]
    with Ledger(run.path) as ledger:
        ledger.books("1-2m").sync(records)
    found = find_runs(runs)
    out = io.StringIO()
    print_sections(report_sections(found), Console(file=out, width=120))
    lines = [line.split() for line in out.getvalue().partition("Training anomalies")[2].splitlines()]
    assert lines.count(["1-2m", "1", "70", "spike", "9.5", "6", "rollback", "20"]) == 9
    assert ["1-2m", "1", "70", "non-finite", "-", "-", "<stop>", "-"] in lines
    assert ["2", "earlier", "anomalies", "are", "in", "the", "JSON", "report."] in lines
    assert "&lt;stop&gt;" in page_of(found)
    document = plain(report_document(found))["runs"][0]
    assert len(document["anomalies"]) == 12
    stage, anomaly = document["anomalies"][-1]
    stop = {key: anomaly[key] for key in ("seconds", "kind", "value", "action")}
    assert (stage, stop) == ("1-2m", {"seconds": 90.0, "kind": "non_finite", "value": None, "action": "<stop>"})
    ladder(runs, name="well")
    assert "Training anomalies" not in page_of(find_runs(runs, ["well"]))


def test_the_texts_of_all_stages_stand_below_their_prompt_on_screen_and_page(runs: Path, tmp_path: Path) -> None:
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
    (runs / "quick-control-tokenformer-scratch-900/stages/0-0-2m").mkdir(parents=True)
    (runs / "quick-control-tokenformer-scratch-900/stages/0-0-2m/samples.json").write_text("damaged")
    said = [line.rstrip() for line in printed(find_runs(runs), details=True).splitlines()]
    texts = ["  quick/0-800k", "    def <b>one\\x1b[2J", "  quick/1-2m", "    def two", "    lines"]
    first = said.index("Text after 'def '") + 1
    assert said[first : first + 5] == texts
    final = runs / "quick/stages/1-1-2m/final"
    final.mkdir()
    (final / "manifest.json").write_text("of another training")
    assert "quick/1-2m" not in printed(find_runs(runs), details=True).partition("Text after")[2]
    (final / "manifest.json").unlink()
    page = ParsedPage(page_written(find_runs(runs), ReportPaths(tmp_path / "report")).read_text())
    [heading] = [heading for heading in page.all("h3") if heading.text == "Text after 'def '"]
    texts = [pre.text for pre in page.all("pre") if heading.parents[-1] in pre.parents]
    assert texts == ["def <b>one\\x1b[2J", "def two\nlines"]
    assert [label.text for label in page.all("figcaption") if heading.parents[-1] in label.parents] == [
        *("quick/0-800k", "quick/1-2m")
    ]


def test_losses_at_other_contexts_than_the_last_stages_are_shown_beside_the_comparable_ones() -> None:
    report = run_report("ladder", 2.0)
    first, last = report.stages
    stages = (replace(first, sequence_length=256, own_context_loss=3.1), replace(last, sequence_length=1024))
    assert list(remarks(replace(report, stages=stages))) == [
        "Losses are measured at the last stage's context, 1,024 tokens. At a stage's own context: 3.1000 for s1000 at "
        "256 (nats per token)."
    ]
    assert list(remarks(replace(report, stages=(replace(first, sequence_length=1024), stages[1])))) == []
