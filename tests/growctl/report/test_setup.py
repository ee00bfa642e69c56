"""What a report says of how its runs were made: environment, commands, schedules, and what each growth did."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from growctl.ledger.lines import RunStart, read_lines, record_start
from growctl.report import setup
from growctl.runs.find import find_runs
from growctl.runs.runs import EvaluationPoint, RunReport
from growctl.runs_dir import RunPaths
from growctl.text.section import Listing, Section, Table
from model.policy import GrowthPolicy
from stages.checkpoint.lineage import GrowthRecord
from tests.growctl.invented_runs import LARGE, SMALL, FakeRun, control, ladder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def cells(section: Section | None) -> list[list[str]]:
    """The texts of the rows of the first table of a section."""
    table = next(part for part in section.parts if isinstance(part, Table))
    return [[cell.text for cell in row] for group in table.groups for row in group.rows]


def texts(section: Section | None) -> list[str]:
    return [part.text for part in section.parts if not isinstance(part, Table)]


def runs_on_zero_2(runs: Path) -> list[RunReport]:
    """The runs in `runs`, as if DeepSpeed's ZeRO stage had been 2."""
    return [replace(run, conditions={"launch.zero_stage": 2}) for run in find_runs(runs)]


def test_runs_of_one_environment_share_a_sentence_with_the_versions_that_their_ladder_recorded(runs: Path) -> None:
    ladder(runs)
    control(runs, 900, 1.30)
    record_start(RunPaths(runs / "quick"), ["growctl", "run", "quickstart"])
    versions = read_lines(RunPaths(runs / "quick").starts, RunStart)[0].software
    assert versions.keys() == {"python", "growctl", "torch", "deepspeed"}
    [sentence] = texts(setup.environment_section(runs_on_zero_2(runs)))
    assert sentence == (
        f"All 2 runs: 2 x cpu in bf16, ZeRO stage 2; growctl {versions['growctl']}, Python {versions['python']}, "
        f"torch {versions['torch']}, DeepSpeed {versions['deepspeed']}."
    )


def test_what_was_not_recorded_of_an_environment_is_said_or_left_out(runs: Path) -> None:
    ladder(runs)
    assert texts(setup.environment_section(find_runs(runs))) == ["quick: 2 x cpu in bf16; versions not recorded."]


def test_runs_that_trained_nothing_have_no_environment(runs: Path) -> None:
    FakeRun(runs, "new", [SMALL, LARGE])
    assert setup.environment_section(find_runs(runs)) is None


def test_a_command_that_was_given_again_is_listed_once_and_secrets_are_hidden(runs: Path) -> None:
    ladder(runs)
    command = ["growctl", "run", "quickstart", "launch.environment.HF_TOKEN=hf_abcdefghijklm", "samples.prompts=[a b]"]
    for _ in range(3):
        record_start(RunPaths(runs / "quick"), command)
    found = setup.command_section(find_runs(runs), ["growctl", "report", "--runs-dir", "my runs"])
    listings = [part for part in found.parts if isinstance(part, Listing)]
    assert [part.text for part in listings] == [
        "growctl run quickstart 'launch.environment.HF_TOKEN=***' 'samples.prompts=[a b]'",
        "growctl report --runs-dir 'my runs'",
    ]
    assert listings[0].label.startswith("quick, started 2")


def test_damaged_lines_of_starts_are_skipped(runs: Path) -> None:
    ladder(runs)
    run = RunPaths(runs / "quick")
    assert read_lines(run.starts, RunStart) == []
    run.starts.write_bytes(b'{"at": 1}\n\xff\n[]\n{"at": "x", "command": "no list", "software": {}}\n')
    record_start(run, ["growctl", "run", "a"])
    assert [start.command for start in read_lines(run.starts, RunStart)] == [("growctl", "run", "a")]


SCHEDULE = "name: {name}\nseed: {seed}\nstages: [{{name: small, train_steps: 10}}]\n"


def test_a_schedule_is_shown_without_the_values_of_its_environment(runs: Path) -> None:
    ladder(runs)
    text = SCHEDULE.format(name="quick", seed=0) + "launch: {environment: {WANDB_API_KEY: abc, NCCL_DEBUG: INFO}}\n"
    RunPaths(runs / "quick").schedule.write_text(text)
    [shown] = texts(setup.schedule_section(find_runs(runs)))
    assert "{WANDB_API_KEY: ***, NCCL_DEBUG: INFO}" in shown
    assert "abc" not in shown


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("s3://key:word@bucket/a?X-Amz-Signature=1 b", "s3://***@bucket/a?*** b"),
        ("export HF_TOKEN=swordfish", "export HF_TOKEN=***"),
        ("attention_tokens: 1024, train_tokens: 1.4M, text_key: content", None),
        ("https://pytorch.org/get-started/locally", None),
    ],
)
def test_secrets_are_removed_from_a_text_and_nothing_else(text: str, clean: str | None) -> None:
    assert setup.without_secrets(text) == (clean or text)


def test_a_schedule_that_cannot_be_read_is_left_out(runs: Path) -> None:
    ladder(runs)
    RunPaths(runs / "quick").schedule.write_bytes(b"a: [\xff")
    assert setup.schedule_section(find_runs(runs)) is None


@pytest.fixture
def lineage(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What the manifest of every grown checkpoint says of its lineage."""
    lineage = SimpleNamespace(growth=GrowthRecord(policy=GrowthPolicy(), preserves=True, seed=0))
    manifest = SimpleNamespace(lineage=lineage)
    monkeypatch.setattr("growctl.report.setup.read_manifest", lambda directory: manifest)
    return lineage


def only_run(runs: Path, loss_after: float) -> RunReport:
    FakeRun(runs, "quick", [SMALL, LARGE]).train(0, 1.42).train(1, 1.28, start=loss_after)
    [run] = find_runs(runs)
    return run


@pytest.mark.parametrize(
    ("moved", "preserves", "outcome"),
    [
        (0.0, True, "preserved"),
        (9e-6, True, "preserved"),
        (2e-5, True, "broke its promise"),
        (2e-5, False, "moved as declared"),
        (0.0, False, "preserved"),
        (2e-5, None, "moved"),
    ],
)
def test_a_growth_is_judged_by_what_its_policy_promises(
    runs: Path, lineage: SimpleNamespace, moved: float, preserves: bool | None, outcome: str
) -> None:
    lineage.growth = None if preserves is None else lineage.growth.model_copy(update={"preserves": preserves})
    run = only_run(runs, 1.42 + moved)
    [growth] = setup.growths(run)
    assert growth.outcome == outcome
    assert growth.num_parameters_before == 800_000
    assert run.stages[1].jump == pytest.approx(moved, abs=1e-12)


def test_a_growth_is_listed_with_its_policy_and_its_losses(runs: Path, lineage: SimpleNamespace) -> None:
    run = only_run(runs, 1.42)
    found = setup.growth_section([run])
    assert cells(found) == [
        [
            *("1-2m", "800k to 2.4M", "init matched, tau ramp", "1.420000", "1.420000", "0"),
            *("1.4285", "120k", "1.58e12", "preserved"),
        ]
    ]


def test_a_growth_in_depth_is_listed_with_its_layers_and_where_they_went(runs: Path, lineage: SimpleNamespace) -> None:
    lineage.growth = GrowthRecord(policy=GrowthPolicy(depth="interleave"), new_layers=2, preserves=True, seed=0)
    run = only_run(runs, 1.42)
    [row] = cells(setup.growth_section([run]))
    assert row[1:3] == ["800k to 2.4M, 2 new layers", "init matched, tau ramp, depth interleave"]
    lineage.growth = lineage.growth.model_copy(update={"new_layers": 0})
    [row] = cells(setup.growth_section([run]))
    assert row[1:3] == ["800k to 2.4M", "init matched, tau ramp"]


def test_a_run_that_has_not_grown_yet_has_no_growths(runs: Path) -> None:
    FakeRun(runs, "new", [SMALL, LARGE]).train(0, 1.42)
    [run] = find_runs(runs)
    assert setup.growths(run) == ()
    assert setup.growth_section([run]) is None


def test_without_the_grown_checkpoint_only_the_losses_are_known(runs: Path) -> None:
    [growth] = setup.growths(only_run(runs, 1.5))
    assert (growth.record, growth.outcome) == (None, "moved")


def with_evaluations(run: RunReport, *losses: tuple[int, float]) -> RunReport:
    """That run with these evaluations after the growth."""
    (_, first), *later = losses
    points = (EvaluationPoint("1-2m", "interval", 0.0, loss, math.exp(loss), step=step) for step, loss in later)
    base, grown = run.stages
    return replace(run, stages=(base, replace(grown, loss_after_growth=first)), points=tuple(points))


@pytest.mark.parametrize(
    ("losses", "highest", "step"),
    [
        ([(0, 1.42), (60, 1.30)], 1.42, 0),
        ([(0, 1.4205), (60, 1.4209)], 1.4209, 0),
        ([(0, 1.30)], 1.30, 0),
        ([(0, 1.42), (60, 1.60), (120, 1.42)], 1.60, 120),
        ([(0, 2.0), (60, 1.9), (120, 1.5), (180, 1.4), (240, 1.7)], 2.0, 180),
        ([(0, 1.9), (60, 2.4), (120, 1.3), (180, 2.9)], 2.4, 120),
        ([(0, 2.0), (60, 1.9), (120, 1.5)], 2.0, None),
    ],
)
def test_the_old_loss_is_reached_again_at_the_first_evaluation_that_is_as_low(
    runs: Path, losses: list[tuple[int, float]], highest: float, step: int | None
) -> None:
    [growth] = setup.growths(with_evaluations(only_run(runs, 1.42), *losses))
    tokens = None if step is None else step * LARGE.tokens_per_step
    assert (growth.highest, growth.regained_after_tokens) == (highest, tokens)
