"""Which checkpoints of other runs stand in for training, how they are taken over, and how that is recorded."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from growctl.ledger.ledger import Ledger
from growctl.run.requests import reuse_sources
from growctl.run.resume import newest_own
from growctl.run.reuse import Candidate, find_further, kept_evaluations, payers, reuse, take_over
from growctl.run.screen import Screen
from growctl.runs.directory import RunError
from growctl.runs_dir import RunsPaths
from model.flops import Flops
from stages.checkpoint.lineage import Lineage, TrainingCost, TrainingRecord
from stages.checkpoint.manifest import CheckpointError, Manifest, read_manifest
from stages.metrics import MetricsWriter, Record, read_metrics
from stages.spec import TrainSpec
from stages.stage_dir import StagePaths
from stages.train.training_history import TrainingHistory
from tests.growctl.ledger.records import BASE, GROWN, RUN
from tests.stages.checkpoints import small_config, write_checkpoint
from tests.stages.specs import small_spec
from tests.stages.test_metrics import EVALUATION, START, TRAIN

MODEL = small_config()
SPEC = small_spec(MODEL, num_steps=20, batch_size=10, sequence_length=10)


def history(spec: TrainSpec = SPEC) -> TrainingHistory:
    return TrainingHistory(spec, "d" * 64, "fp32")


def checkpoint(directory: Path, step: int, spec: TrainSpec = SPEC, **changes: Any) -> Manifest:
    """A checkpoint with the history of `step` steps of `spec`."""
    cost = TrainingCost(steps=step, tokens=step * 100, flops=Flops(6.0, 2.0, 1.0) * step, device_seconds=2.00004 * step)
    record = TrainingRecord(evaluations=spec.evaluations, validation_loss=2.5, validation_tokens=10)
    lineage = Lineage(operation="train", history=history(spec).at(step, cost), training=record)
    return write_checkpoint(directory, MODEL, step=step, lineage=lineage, precision="fp32", **changes)


def records_of(stage: StagePaths, *events: tuple[str, int, dict[str, Any]], attempt: int = 1) -> None:
    stage.directory.mkdir(parents=True, exist_ok=True)
    writer = MetricsWriter(stage.metrics, attempt)
    for event, step, values in events:
        writer.write(event, step, 1.0, **values)
    writer.close()


@pytest.fixture
def donor(tmp_path: Path) -> StagePaths:
    """The stage of another run, with its own `final/` after 20 steps."""
    stage = RunsPaths(tmp_path / "runs").run("other").stage(0, "small")
    points = [(10, {"point": "interval", "loss": 3.0}), (20, {"point": "final", "loss": 2.5})]
    judged = [("evaluation", step, EVALUATION | values) for step, values in points]
    records_of(stage, ("start", 0, START), *judged, ("end", 20, {}))
    checkpoint(stage.final, 20)
    return stage


@pytest.fixture
def own(tmp_path: Path) -> StagePaths:
    stage = RunsPaths(tmp_path / "runs").run("own").stage(0, "0-small")
    stage.directory.mkdir(parents=True)
    return stage


def spec_in(own: StagePaths, **changes: Any) -> TrainSpec:
    return SPEC.model_copy(update={"directory": str(own.directory), **changes})


def furthest(tmp_path: Path, spec: TrainSpec = SPEC, beyond: int = 0) -> Candidate | None:
    return next(find_further(history(spec), beyond, [tmp_path / "runs"], pytest.fail), None)


def taken(tmp_path: Path, spec: TrainSpec, own: int = 0) -> Path:
    """Takes over the furthest checkpoint; its new place."""
    return take_over(next(find_further(history(spec), 0, [tmp_path / "runs"], pytest.fail)), spec, own)


def events(stage: StagePaths) -> list[str]:
    return [record["event"] for record in read_metrics(stage.metrics)]


@contextmanager
def booked(own: StagePaths) -> Iterator[Ledger]:
    """A ledger with the records of the stage."""
    with Ledger(own.directory / "ledger.db") as ledger:
        ledger.record_run(RUN, [BASE, GROWN])
        ledger.books("0-small").sync(read_metrics(own.metrics), attempt_over=True)
        yield ledger


def test_a_finished_stage_with_the_same_history_becomes_the_stages_own_end_without_a_copy(tmp_path, donor, own):
    final = taken(tmp_path, spec_in(own))
    assert final == own.final
    assert (final / "manifest.json").read_bytes() == (donor.final / "manifest.json").read_bytes()
    for name in read_manifest(final).files:
        assert (final / name).samefile(donor.final / name)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num_steps": 30}, ["reused", "evaluation"]),
        ({"evaluation_sequences": 3}, ["reused"]),
        ({"evaluation_length": 20}, ["reused"]),
    ],
)
def test_a_shorter_stage_or_one_judged_on_other_sequences_is_resumed_from(tmp_path, donor, own, changes, expected):
    """The worker then measures the loss itself, and ends the stage."""
    assert taken(tmp_path, spec_in(own, **changes)) == own.directory / "converted_00000020"
    assert events(own) == expected


def test_the_furthest_checkpoint_counts_that_is_within_the_stage(tmp_path, donor):
    assert (found := furthest(tmp_path)) is not None
    assert found.directory == donor.final
    assert furthest(tmp_path, beyond=20) is None
    checkpoint(RunsPaths(tmp_path / "runs").run("third").stage(0, "x").step(12), 12)
    assert (found := furthest(tmp_path, SPEC.model_copy(update={"num_steps": 15}))) is not None
    assert (found.run, found.steps) == ("third", 12)


@pytest.mark.parametrize(
    "changes", [{"seed": 1}, {"samples_seen": 4}, {"batch_size": 5}, {"left_out": ((3, 1),)}, {"ramp_steps": 5}]
)
def test_training_that_differs_is_not_reused(tmp_path, donor, changes):
    assert furthest(tmp_path, SPEC.model_copy(update=changes)) is None


def test_a_broken_checkpoint_of_another_run_is_passed_over_with_a_message_and_left_alone(tmp_path, donor):
    checkpoint(donor.step(10), 10)
    name = next(iter(read_manifest(donor.final).files))
    (donor.final / name).write_bytes(b"damaged")
    said: list[str] = []
    [found] = find_further(history(), 0, [tmp_path / "runs"], said.append)
    assert found.directory == donor.step(10)
    [message] = said
    assert message.startswith(f"not reused: {donor.final} is broken: {name}")
    assert donor.final.exists()


def test_an_engine_checkpoint_is_reused_only_within_its_runs_directory(tmp_path, donor):
    shutil.rmtree(donor.final)
    checkpoint(donor.step(10), 10, kind="engine", world_size=1)
    assert (found := furthest(tmp_path)) is not None
    assert found.directory == donor.step(10)
    assert list(find_further(history(), 0, [tmp_path / "elsewhere", tmp_path / "runs"], pytest.fail)) == []


def test_a_checkpoint_removed_while_it_is_linked_leaves_nothing_and_is_reported(tmp_path, donor, own):
    [found] = find_further(history(), 0, [tmp_path / "runs"], pytest.fail)
    shutil.rmtree(donor.final)
    with pytest.raises(CheckpointError, match="is gone: its run has removed it"):
        take_over(found, spec_in(own), 0)
    assert list(own.directory.iterdir()) == []


def test_a_part_of_a_stage_is_taken_over_once_and_not_again_when_the_stage_resumes(tmp_path, donor, own):
    longer = spec_in(own, num_steps=30)
    for reused in (True, False):
        newest = newest_own(own.directory, pytest.fail)
        steps = read_manifest(newest).step if newest else 0
        assert reuse(longer, history(longer), steps, [tmp_path / "runs"], Screen(Console())) is reused
    assert events(own) == ["reused", "evaluation"]


def test_a_checkpoint_that_cannot_be_taken_over_is_passed_over_for_the_next(tmp_path, donor, own, capsys):
    checkpoint(donor.step(10), 10, kind="engine", world_size=1)
    (own.directory / "converted_00000020").mkdir()  # broken: it has no manifest
    longer = spec_in(own, num_steps=30)
    assert reuse(longer, history(longer), 0, [tmp_path / "runs"], Screen(Console()))
    assert "not reused: " in capsys.readouterr().out
    assert read_manifest(own.step(10)).kind == "engine"


def test_the_ledger_books_reused_steps_as_part_of_the_models_cost_and_not_as_spent(tmp_path, donor, own):
    taken(tmp_path, spec_in(own))
    shutil.rmtree(own.final)  # killed between the record and the rename
    taken(tmp_path, spec_in(own, attempt=2))
    with booked(own) as ledger:
        cost = ledger.stage_cost("0-small")
        assert cost.model.steps == cost.reused.steps == 20
        assert cost.reused.device_seconds == 40.001
        assert cost.model.flops == BASE.step_flops * 20
        spent = cost.spent
        assert (spent.steps, spent.device_seconds, spent.wall_seconds, spent.evaluation_flops) == (0, 0.0, 0.0, 0.0)
        found = [(e.step, e.point, e.loss) for e in ledger.evaluations("0-small")]
        assert found == [(10, "interval", 3.0), (20, "final", 2.5)]
        assert ledger.finished("0-small")
        assert {(row.paid_by, row.device) for row in ledger.work("0-small")} == {("other", START["device"])}


def test_own_steps_stay_booked_as_spent_and_only_the_rest_as_reused(tmp_path, donor, own):
    records_of(own, ("start", 0, START), ("checkpoint", 5, {"path": "step_00000005"}), ("train", 7, TRAIN))
    taken(tmp_path, spec_in(own, attempt=2), own=5)
    with booked(own) as ledger:
        cost = ledger.stage_cost("0-small")
        assert (cost.kept.steps, cost.replayed.steps, cost.reused.steps) == (5, 2, 15)
        assert cost.reused.device_seconds == 30.001


@pytest.mark.parametrize("elsewhere", [False, True], ids=["the same runs directory", "another runs directory"])
def test_a_run_that_reused_what_another_had_reused_names_the_run_that_paid(tmp_path, donor, own, elsewhere):
    taken(tmp_path, spec_in(own))
    shutil.rmtree(donor.directory)
    runs_dir = tmp_path / ("elsewhere" if elsewhere else "runs")
    third = RunsPaths(runs_dir).run("third").stage(0, "0-small")
    third.directory.mkdir(parents=True)
    sources = list(dict.fromkeys([runs_dir, tmp_path / "runs"]))
    take_over(next(find_further(history(), 0, sources, pytest.fail)), spec_in(third), 0)
    paid = [record["run"] for record in read_metrics(third.metrics) if record["event"] == "reused"]
    assert paid == [str(tmp_path / "runs/other") if elsewhere else "other"]


def attempt(event: str, number: int, step: int, run: str | None, resumed_from: int | None = None) -> Record:
    """A record that begins an attempt; a `start` is at the step that it resumes from."""
    resumed = step if resumed_from is None else resumed_from
    return {"event": event, "attempt": number, "step": step, "resumed_from": resumed, "run": run}


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([("start", 1, 0, None)], [("me", 0)]),
        ([("reused", 1, 7, "a", 0), ("start", 2, 7, None)], [("a", 0), ("me", 7)]),
        ([("reused", 1, 4, "a", 0), ("reused", 1, 9, "b", 0), ("start", 2, 9, None)], [("a", 0), ("b", 4), ("me", 9)]),
        ([("start", 1, 0, None), ("reused", 2, 9, "a", 5), ("start", 3, 7, None)], [("me", 0), ("a", 5), ("me", 7)]),
        ([("reused", 1, 9, "a", 0), ("start", 2, 0, None)], [("me", 0)]),
    ],
)
def test_every_step_was_paid_for_by_the_last_attempt_that_made_it(records, expected):
    found = payers([attempt(*record) for record in records], "me")
    assert [(segment.paid_by, segment.first_step) for segment in found] == expected


def test_evaluations_of_repeated_steps_are_not_taken_over():
    def line(attempt: int, step: int, loss: float) -> Record:
        return {"event": "evaluation", "attempt": attempt, "step": step, "point": "interval", "loss": loss}

    started = [{"event": "start", "attempt": 2, "step": 15, "resumed_from": 15}]
    kept = kept_evaluations([line(1, 10, 3.0), line(1, 20, 2.0), *started, line(2, 20, 2.1)])
    assert [(record["step"], record["loss"]) for record in kept] == [(10, 3.0), (20, 2.1)]


def test_directories_to_reuse_from_must_exist_and_exclude_no_reuse(tmp_path: Path):
    runs, others = tmp_path / "runs", tmp_path / "others"
    (others / "run").mkdir(parents=True)
    for empty in (others, tmp_path / "missing"):
        with pytest.raises(RunError, match=rf"--reuse-from .*{empty.name}: there are no runs in it$"):
            reuse_sources(runs, [empty], False)
    (others / "run/schedule.yaml").touch()
    assert reuse_sources(runs, [others], False) == (runs, others)
    assert reuse_sources(runs, [], True) == ()
    with pytest.raises(RunError, match="contradict each other"):
        reuse_sources(runs, [others], True)
