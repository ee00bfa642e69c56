"""Real runs on a mixture: weights by stage, and training that is shared exactly as far as the weights agree."""

from pathlib import Path

import pytest

from growctl.ladder.datasets import mixture_spans
from growctl.ladder.load import load_schedule
from growctl.runs.find import read_run
from stages.checkpoint.manifest import read_manifest
from stages.data.samples import TrainingSamples
from stages.spec import TrainSpec
from stages.train.training_history import TrainingHistory
from tests.growctl.mixed import SCHEDULE, write_schedule, write_texts
from tests.growctl.runs import final_hashes, run, run_here

pytestmark = pytest.mark.trains

OTHERWISE = "stages.1.mixture={books: 0, code: 1}"


@pytest.fixture(scope="module")
def folder(training: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `mixed` of two stages, each with weights of its own."""
    folder = tmp_path_factory.mktemp("mixed_runs")
    write_texts(folder)
    path = write_schedule(folder, stages=SCHEDULE["stages"][:2], controls=[])
    run("run", path, "--runs-dir", folder / "runs")
    return folder


def spans(stage: Path) -> list[tuple[int, dict[str, float]]]:
    spec = TrainSpec.model_validate_json((stage / "spec.json").read_bytes())
    return [(span.first_window, span.weights) for span in spec.mixture]


def test_a_stage_hands_its_workers_the_weights_of_all_samples_so_far(folder: Path) -> None:
    stages = folder / "runs/mixed/stages"
    base = (0, {"books": 3.0, "code": 1.0})
    assert spans(stages / "0-a") == [base]
    assert spans(stages / "1-b") == [base, (24, {"books": 1.0})]
    assert read_manifest(stages / "1-b/final").samples_seen == 48


def test_training_is_taken_over_exactly_as_far_as_the_shares_agree(folder: Path) -> None:
    runs, given = folder / "runs", ("--runs-dir", folder / "runs")
    scaled = ("stages.0.mixture={books: 6, code: 2}", "stages.1.mixture={books: 7}")
    run_here("run", folder / "mixed.yaml", *scaled, "--name", "scaled", *given)
    assert final_hashes(runs / "scaled") == final_hashes(runs / "mixed")
    assert not list((runs / "scaled").rglob("log.txt")), "nothing was trained"
    own, taken = (read_run(runs / name / "ledger.db").stages[1].by_source for name in ("mixed", "scaled"))
    assert own == taken != {}
    run_here("run", folder / "mixed.yaml", OTHERWISE, "--name", "other", "--until", "a", *given)
    assert final_hashes(runs / "other").items() <= final_hashes(runs / "mixed").items()
    trained = TrainSpec.model_validate_json((runs / "mixed/stages/1-b/spec.json").read_bytes())
    wanted = mixture_spans(load_schedule(str(folder / "mixed.yaml"), [OTHERWISE], runs_dir=runs), [0, 24])
    other = TrainingHistory(trained.model_copy(update={"mixture": wanted}), "d", "fp32")
    assert other.hash_at(1) != TrainingHistory(trained, "d", "fp32").hash_at(1)


def test_the_ledger_has_the_tokens_epochs_and_losses_of_each_source(folder: Path) -> None:
    mixed = folder / "runs/mixed"
    spec = TrainSpec.model_validate_json((mixed / "stages/1-b/spec.json").read_bytes())
    samples = TrainingSamples(Path(spec.dataset), spec.sequence_length, spec.seed, spec.mixture)
    for stage, (first, end) in zip(read_run(mixed / "ledger.db").stages, ((0, 24), (24, 48)), strict=True):
        tokens = {name: found["trained_tokens"] for name, found in stage.by_source.items()}
        assert tokens == samples.tokens_by_source(first, end - first)
        assert sum(tokens.values()) == stage.train_tokens
        assert {name: found["epochs"] for name, found in stage.by_source.items()} == samples.epochs_by_source(end)
        losses = {name: found["loss"] or 0.0 for name, found in stage.by_source.items()}
        assert stage.validation_loss == pytest.approx(0.75 * losses["books"] + 0.25 * losses["code"], rel=1e-12)
    out, _ = run_here("show", mixed / "stages/1-b/final")
    assert f"source books  read {samples.epochs_by_source(48)['books']:.3g} times, validation loss" in out


def test_a_start_checkpoint_brings_the_weights_that_it_was_trained_with(folder: Path) -> None:
    start = ["start={run: mixed}", "stages=[{name: c, attention_tokens: 6, ffn_tokens: 12, train_steps: 2}]"]
    base = load_schedule(str(folder / "mixed.yaml"), start, runs_dir=folder / "runs").base
    assert base
    assert [(span.first_window, span.weights) for span in base.mixture] == [
        (0, {"books": 3.0, "code": 1.0}),
        (24, {"books": 1.0}),
    ]
