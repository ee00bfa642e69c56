"""The report compares the ladder with its controls, on a screen and in files, also while runs start and write."""

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from growctl.ledger.entries import BaseEntry
from growctl.ledger.file import LedgerError
from growctl.ledger.ledger import Ledger
from growctl.report.documents import report_document, stages_csv
from growctl.report.sections import remarks, report_sections, validation_warning
from growctl.runs.find import RunNotFoundError, find_runs
from growctl.text.documents import plain
from stages.generate.text_samples import TextRequest, TextSample, TextSamples
from tests.growctl.invented_runs import LARGE, SCRATCH, SMALL, FakeRun, control, ladder
from tests.growctl.report.invented_reports import run_report
from tests.growctl.report.rendered import lines_of, page_of
from tests.growctl.runs import run_here
from tests.growctl.text.schemas import assert_follows_schema


@pytest.fixture
def runs(tmp_path):
    return tmp_path / "runs"


def table(runs):
    return list(csv.DictReader(io.StringIO(stages_csv(runs))))


def test_a_stage_report_has_the_cost_and_the_jump_without_replayed_work(runs):
    ladder(runs, killed_at=200)
    [run] = find_runs(runs)
    small, large = run.stages
    base, step = 1000 * SMALL.step_flops.total, LARGE.step_flops.total
    assert (small.flops, small.cumulative_flops, large.cumulative_flops) == (base, base, base + large.flops)
    assert (large.flops, large.replayed_flops) == pytest.approx((600 * step, 200 * step))
    assert (large.num_steps, large.train_tokens, large.num_parameters) == (600, 600_000, 2_400_000)
    assert (large.validation_loss, large.perplexity) == (1.28, math.exp(1.28))
    assert (small.loss_before_growth, small.loss_after_growth, small.jump) == (None, None, None)
    assert (large.loss_before_growth, large.loss_after_growth, large.jump) == (1.42, 1.42, 0.0)
    assert large.spent.device_seconds == 2 * large.spent.wall_seconds > 0
    grown = [point for point in run.points if point.stage == "1-2m"]
    assert [point.point for point in grown] == ["after_growth"] + ["interval"] * 10 + ["final"]
    costs = [point.cumulative_flops for point in grown]
    assert [*costs[:2], costs[-1]] == pytest.approx([base, base + 60 * step, run.cumulative_flops])
    assert "Replayed after interruptions" in page_of([run])


@pytest.mark.parametrize(
    ("flops", "loss_tokens", "jump", "cell", "remark"),
    [
        (7e12, 5000, 0.0, "7000000000000.0", "FLOPs count from it on: its 7.00e12 FLOPs are paid for."),
        (None, 99, None, "", "FLOPs count from it on: its cost is not known."),
    ],
    ids=["known", "unknown"],
)
def test_flops_count_from_the_start_checkpoint_on_and_its_cost_is_said(runs, flops, loss_tokens, jump, cell, remark):
    """Nor has the growth a jump if the start checkpoint's loss was measured on other tokens."""
    facts = ("/base", "f" * 64, "first, stage small", 400_000, flops)
    base = BaseEntry(*facts, validation_loss=1.5, validation_tokens=loss_tokens)
    FakeRun(runs, "more", [SMALL], base=base).train(0, 1.42, start=1.5)
    [run] = find_runs(runs)
    assert (run.points[0].cumulative_flops, run.stages[0].jump) == (0.0, jump)
    assert run.cumulative_flops == run.stages[0].flops
    assert table([run])[0]["base_flops"] == cell
    [said] = remarks(run)
    assert remark in said
    assert "400k parameters, trained in run first, stage small" in said


def test_json_and_csv_have_each_stage_and_nothing_where_a_figure_is_not_finite(runs):
    ladder(runs, name='of "two", stages')
    FakeRun(runs, "waits $", [SMALL, LARGE]).train(0, math.inf)
    FakeRun(runs, "new", [SMALL])
    found = find_runs(runs)
    document = plain(report_document(found))
    assert_follows_schema(document, "report")
    rows = {(row["run"], row["stage"]): (row["finished"], row["validation_loss"]) for row in table(found)}
    ends = {
        ("new", "0-800k"): (False, None),
        ('of "two", stages', "0-800k"): (True, 1.42),
        ('of "two", stages', "1-2m"): (True, 1.28),
        ("waits $", "0-800k"): (True, None),
        ("waits $", "1-2m"): (False, None),
    }
    assert rows == {key: (str(finished), str(loss or "")) for key, (finished, loss) in ends.items()}
    for run in document["runs"]:
        for stage in run["stages"]:
            assert (stage["finished"], stage["validation_loss"]) == ends.pop((run["name"], stage["name"]))
    assert not ends
    assert "data:image/svg+xml" in page_of(found)


def test_names_stand_for_ladders_or_sets_with_their_controls_and_an_unknown_one_lists_the_nearest(runs):
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
    with pytest.raises(RunNotFoundError, match=r"no run 'quikc' in .*; the nearest (is|are) .*\bquick\b"):
        find_runs(runs, ["quikc"])


def test_an_unreadable_ledger_stops_only_reports_that_need_it(runs):
    ladder(runs)
    ladder(runs, name="alone")
    control(runs, 500, 1.30).path.write_bytes(b"torn" * 500)
    assert [run.name for run in find_runs(runs, ["alone"])] == ["alone"]
    for names in ([], ["quick"], [f"quick-control-{SCRATCH}-500"]):
        with pytest.raises(LedgerError, match=f"{SCRATCH}-500"):
            find_runs(runs, names)


def test_the_texts_of_all_stages_stand_below_their_prompt(runs):
    ladder(runs)
    for stage, text in {"0-0-800k": "<b>one\x1b[2J", "1-1-2m": "two"}.items():
        sample = TextSample(prompt="def ", text=text, finish_reason="length")
        written = TextSamples(checkpoint="f00d", request=TextRequest(prompts=("def ",)), samples=(sample,))
        file = runs / "quick/stages" / stage / "samples.json"
        file.parent.mkdir(parents=True)
        file.write_text(written.model_dump_json())

    def shown():
        return " ".join(lines_of(report_sections(find_runs(runs)), details=True)).partition("Text after 'def ' ")[2]

    assert shown().startswith("quick/0-800k def <b>one\\x1b[2J quick/1-2m def two ")
    (file.parent / "final").mkdir()
    (file.parent / "final/manifest.json").write_text("of another training")
    assert "quick/1-2m" not in shown()


def test_losses_at_other_contexts_than_the_last_stages_are_shown_beside_the_comparable_ones():
    report = run_report("ladder")
    first, last = report.stages
    stages = (replace(first, sequence_length=256, own_context_loss=3.1), replace(last, sequence_length=1024))
    [said] = remarks(replace(report, stages=stages))
    assert "at the last stage's context, 1,024 tokens. At a stage's own context: 3.1000 for s1000 at 256" in said


def test_a_mixture_has_the_tokens_epochs_and_losses_of_each_source_by_stage_and_for_controls(tmp_path):
    mixture: dict[str, Any] = {"data.mixture": {"books": 6.0, "code": 2.0}}
    FakeRun(tmp_path, "quick", [SMALL, LARGE], **mixture).train(0, 1.42).train(1, 1.28, start=1.42, killed_at=240)
    control(tmp_path, 2000, 1.31, **mixture)
    found = find_runs(tmp_path)
    [sources] = [section for section in report_sections(found) if section.key == "sources"]
    assert [[cell.text for cell in row] for group in sources.parts[0].groups for row in group.rows] == [
        ["0-800k", "books", "750k", "7.5", "1.3950", "2.0486"],
        ["0-800k", "code", "250k", "2.5", "1.4950", "2.0486"],
        ["1-2m", "books", "450k", "4.5", "1.2550", "1.8466"],
        ["1-2m", "code", "150k", "1.5", "1.3550", "1.8466"],
        ["0-2m", "books", "1.5M", "15", "1.2850", "1.8899"],
        ["0-2m", "code", "500k", "5", "1.3850", "1.8899"],
    ]
    recorded = report_document(found).runs[0].stages[1].by_source
    assert recorded["books"]["trained_tokens"] == 450_000
    assert json.loads(table(found)[1]["by_source"]) == recorded


@pytest.mark.parametrize(
    ("size", "max_sequences", "said"),
    [
        ((80, 500_000), 1563, "None"),
        ((50, 99_999), None, "with fewer than 50 documents or 100,000 tokens, a difference of 0.05 nats"),
        ((80, 500_000), 10, "an evaluation reads 640 of them"),
    ],
)
def test_a_validation_set_that_is_small_or_little_of_which_is_read_is_warned_of(tmp_path, size, max_sequences, said):
    few: dict[str, Any] = {"evaluation.max_sequences": max_sequences}
    stages = [SMALL, replace(LARGE, sequence_length=64)]
    FakeRun(tmp_path, "a", stages, validation=size, **few).train(0, 1.42)
    assert said in str(validation_warning(find_runs(tmp_path)[0]))


@pytest.mark.slow
def test_a_report_on_seeds_has_one_result_and_group_by_seed_one_for_each(tmp_path: Path) -> None:
    for seed, loss in enumerate((1.30, 1.32)):
        run = FakeRun(tmp_path, f"quick-seed-{seed}", [SMALL, LARGE], seed=seed, run_set=("quick", {"seed": seed}))
        run.train(0, 1.42).train(1, loss, start=1.42)
        control(tmp_path, 933, loss + 0.1, of=run.entry.name, seed=seed)
    for options, seeds in (((), [[0, 1]]), (("--group-by", "seed"), [[0], [1]])):
        out, _ = run_here("report", "quick", "--runs-dir", tmp_path, *options, "--json")
        assert [headline["seeds"] for headline in json.loads(out)["results"]["headlines"]] == seeds
    _, err = run_here("report", "--runs-dir", tmp_path, "--group-by", "sed", expect=2)
    assert "--group-by 'sed': must be seed, schedule or a dotted key" in err


def test_a_reader_sees_a_ledger_as_it_was_when_it_was_opened_and_the_runner_writes_meanwhile(tmp_path):
    run = FakeRun(tmp_path, "quick", [SMALL, LARGE])
    with Ledger(run.path, read_only=True) as reader:
        run.train(0, 1.42)
        assert not reader.finished(SMALL.name)
        assert reader.stage_cost(SMALL.name).spent.steps == 0
    assert find_runs(tmp_path)[0].stages[0].finished


def test_a_run_that_is_only_just_starting_does_not_stop_the_report_on_the_others(tmp_path):
    ladder(tmp_path, name="still")
    for name in ("created", "opened"):
        (tmp_path / name).mkdir()
    (tmp_path / "created/ledger.db").touch()
    Ledger(tmp_path / "opened/ledger.db").close()  # has its tables, but no run yet
    assert [run.name for run in find_runs(tmp_path)] == ["still"]
    for name in ("created", "opened"):
        with pytest.raises(LedgerError, match=f"{name}/ledger.db: no run is recorded here yet"):
            find_runs(tmp_path, [name])
    (tmp_path / "still/ledger.db").unlink()
    with pytest.raises(RunNotFoundError, match=r"there are no runs in .* yet"):
        find_runs(tmp_path)
