"""What a report says of how its runs were made, what each growth did, and how the models score."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from growctl.ledger.entries import ScoreEntry
from growctl.ledger.ledger import Ledger
from growctl.ledger.lines import RunStart, read_lines, record_start
from growctl.report import setup
from growctl.report.scores import COLUMNS, other_scores, section
from growctl.runs.find import find_runs
from growctl.runs.runs import EvaluationPoint
from growctl.runs_dir import RunPaths
from model.policy import GrowthPolicy
from stages.checkpoint.lineage import GrowthRecord
from tests.growctl.invented_runs import LARGE, SMALL, FakeRun, control, ladder, stage_of
from tests.growctl.report.rendered import lines_of


@pytest.fixture
def quick(tmp_path):
    """A ladder that has a control."""
    ladder(tmp_path)
    control(tmp_path, 900, 1.30)
    return RunPaths(tmp_path / "quick")


def runs_beside(run):
    return find_runs(run.directory.parent)


def texts(section):
    return [part.text for part in section.parts]


def test_each_environment_has_a_sentence_with_the_versions_that_the_ladder_recorded(quick):
    runs = runs_beside(quick)
    assert texts(setup.environment_section(runs)) == ["All 2 runs: 2 x cpu in bf16; versions not recorded."]
    quick.starts.write_bytes(b'{"at": 1}\n\xff\n[]\n{"at": "x", "comm')  # damaged, and cut off by a crash
    for word in ("run", "again"):
        record_start(quick, ["growctl", word])
    start, again = read_lines(quick.starts, RunStart)
    assert (start.command, again.command) == (("growctl", "run"), ("growctl", "again"))
    assert quick.starts.read_bytes().count(b"\n") == 6
    software = "growctl {growctl}, Python {python}, torch {torch}, DeepSpeed {deepspeed}".format(**start.software)
    changed = replace(runs[0], conditions={"launch.zero_stage": 2})
    assert texts(setup.environment_section([changed])) == [f"quick: 2 x cpu in bf16, ZeRO stage 2; {software}."]


def test_a_command_that_was_given_again_is_listed_once_and_secrets_are_hidden(quick):
    command = ["growctl", "run", "quickstart", "launch.environment.HF_TOKEN=hf_abcdefghijklm", "samples.prompts=[a b]"]
    for _ in range(3):
        record_start(quick, command)
    first, own = setup.command_section(runs_beside(quick), ["growctl", "report", "--runs-dir", "my runs"]).parts
    assert first.text == "growctl run quickstart 'launch.environment.HF_TOKEN=***' 'samples.prompts=[a b]'"
    assert first.label.startswith("quick, started 2")
    assert own.text == "growctl report --runs-dir 'my runs'"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("{WANDB_API_KEY: abc, NCCL_DEBUG: INFO}", "{WANDB_API_KEY: ***, NCCL_DEBUG: INFO}"),
        ("s3://key:word@bucket/a?X-Amz-Signature=1 b", "s3://***@bucket/a?*** b"),
        ("export HF_TOKEN=swordfish", "export HF_TOKEN=***"),
        *[(same, same) for same in ("attention_tokens: 1024, text_key: content", "https://pytorch.org/get-started")],
    ],
)
def test_a_schedule_is_shown_without_its_secrets_and_left_out_if_it_cannot_be_read(quick, text, clean):
    quick.schedule.write_text(text)
    assert texts(setup.schedule_section(runs_beside(quick))) == [clean]
    quick.schedule.write_bytes(b"a: [\xff")
    assert setup.schedule_section(runs_beside(quick)) is None


@pytest.fixture
def lineage(monkeypatch):
    """What the manifest of every grown checkpoint says of its lineage."""
    lineage = SimpleNamespace(growth=GrowthRecord(policy=GrowthPolicy(), preserves=True, seed=0))
    monkeypatch.setattr("growctl.report.setup.read_manifest", lambda directory: SimpleNamespace(lineage=lineage))
    return lineage


def grown(runs, loss_after=1.42):
    """A run that grew to a model which had `loss_after` at once."""
    FakeRun(runs, "quick", [SMALL, LARGE]).train(0, 1.42).train(1, 1.28, start=loss_after)
    [run] = find_runs(runs)
    return run


@pytest.mark.parametrize(
    ("moved", "preserves", "outcome"),
    [
        (9e-6, True, "preserved"),
        (2e-5, True, "broke its promise"),
        (-2e-5, False, "moved as declared"),
        (0.0, False, "preserved"),
        (2e-5, None, "moved"),
    ],
)
def test_a_growth_is_judged_by_what_its_policy_promises(tmp_path, lineage, moved, preserves, outcome):
    lineage.growth = None if preserves is None else lineage.growth.model_copy(update={"preserves": preserves})
    run = grown(tmp_path, 1.42 + moved)
    [growth] = setup.growths(run)
    assert (growth.outcome, growth.num_parameters_before, growth.record) == (outcome, 800_000, lineage.growth)
    assert run.stages[1].jump == pytest.approx(moved, abs=1e-12)
    [unmeasured] = setup.growths(replace(run, stages=(run.stages[0], replace(run.stages[1], loss_after_growth=None))))
    assert (unmeasured.outcome, unmeasured.highest, unmeasured.regained_after_tokens) == ("unknown", None, None)


@pytest.mark.parametrize(
    ("losses", "highest", "step"),
    [
        ([1.4205, 1.4209], 1.4209, 0),
        ([1.42, 1.60, 1.42], 1.60, 120),
        ([1.9, 2.4, 1.4209, 2.9], 2.4, 120),
        ([2.0, 1.9, 1.4211], 2.0, None),
    ],
)
def test_the_old_loss_is_reached_again_at_the_first_evaluation_that_is_as_low(tmp_path, losses, highest, step):
    run = grown(tmp_path)
    first, *later = losses
    points = tuple(
        EvaluationPoint("1-2m", "interval", 0.0, loss, math.exp(loss), step=60 * number)
        for number, loss in enumerate(later, 1)
    )
    stages = (run.stages[0], replace(run.stages[1], loss_after_growth=first))
    [growth] = setup.growths(replace(run, stages=stages, points=points))
    tokens, flops = (None, None) if step is None else (step * LARGE.tokens_per_step, step * LARGE.step_flops.total)
    assert (growth.highest, growth.regained_after_tokens, growth.regained_after_flops) == (highest, tokens, flops)


LATER = "2026-02-01T00:00:00.000+00:00"
FINAL = ScoreEntry(
    "small", "final", "a" * 64, "2026-01-01T00:00:00.000+00:00", "piqa", "acc", "none", 0.6, 0.01, 1838, 0
)


def report(folder, *scores):
    """The report of a run of two stages whose ledger holds `scores`."""
    run = FakeRun(folder, "ladder", [stage_of("small", 1_000_000, 10), stage_of("large", 2_000_000, 10)])
    run.train(0, 3.0).train(1, 2.5)
    with Ledger(run.path) as ledger:
        ledger.record_scores(scores)
    return find_runs(folder)


def shown(runs, **how):
    found = section(runs)
    return lines_of([found] if found else [], **how)


def test_the_newest_evaluation_of_the_newest_final_checkpoint_counts(tmp_path):
    newer = replace(FINAL, evaluated_at=LATER, value=0.7)
    runs = report(tmp_path, FINAL, newer, replace(newer, checkpoint="step_00000005"))
    assert runs[0].stages[0].scores == (newer,)
    of_another_final = replace(newer, manifest="b" * 64, task="winogrande")
    assert report(tmp_path / "b", FINAL, of_another_final)[0].stages[0].scores == (of_another_final,)


def test_a_model_gets_a_row_in_the_papers_columns_and_an_average_of_all_tasks(tmp_path):
    values = dict(zip(COLUMNS.values(), (16.38, 0.45, 0.355, 0.649, 0.473, 0.249, 0.504), strict=True))
    scores = [replace(FINAL, task=task, metric=metric, value=value) for (task, metric), value in values.items()]
    *_, headings, row = shown(report(tmp_path / "all", *scores), width=80)
    assert headings.split()[2:6] == ["ppl", "LAMBADA", "Swag", "PIQA"]
    assert row.split()[-9:] == ["1M", "16.38", "45.0", "35.5", "64.9", "47.3", "24.9", "50.4", "44.7"]
    assert shown(report(tmp_path / "missing", *scores[:-1]))[-1].split()[-2:] == ["-", "-"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_shots": 5}, "piqa, 5 shots"),
        ({"settings": {"limit": 10}}, "piqa, limit 10"),
        ({"settings": {"dtype": "bfloat16", "lm_eval": "1"}}, "piqa, dtype bfloat16"),
        ({"task": "arithmetic", "settings": {"context": 64, "trained_length": 64}}, "arithmetic"),
    ],
)
def test_scores_that_compare_with_no_other_stay_out_of_the_table(tmp_path, change, said):
    runs = report(tmp_path, replace(FINAL, **change))
    assert other_scores(runs) == [("ladder/small", said, "acc 0.6 ± 0.01")]
    assert "Zero-shot scores" not in shown(runs)
