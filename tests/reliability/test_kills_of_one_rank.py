"""A run of one rank that is killed at chosen points, many times, resumes and ends in the same bits."""

from pathlib import Path

import pytest

from model.policy import EXACT_GROWTH
from stages.checkpoint.manifest import read_manifest
from stages.data.samples import TrainingSamples
from stages.data.tokens import TokenSplit
from stages.spec import TrainSpec
from tests.growctl.runs import losses
from tests.reliability.harness import KilledRun, check_same_end
from tests.reliability.points import BY_NAME

KILLS = [
    BY_NAME["data: before its rename"].fault("data", "runner"),
    BY_NAME["ledger: no run in it yet"].fault("ledger", "runner"),
    BY_NAME["checkpoint: a file half written"].fault("torn", "one rank", "middle", nth=2),
    BY_NAME["expand: initial/ half written"].fault("expand", "runner", "middle", nth=4),
    BY_NAME["step: gradients there, no update"].fault("step", "runner SIGTERM", "middle", nth=5),
    BY_NAME["checkpoint: renamed, not yet told"].fault("release", "everybody", "middle/release"),
    BY_NAME["checkpoint: rows written, not committed"].fault("booked", "runner", nth=4),
]
"""One in each phase of a run."""


@pytest.fixture(scope="module")
def undisturbed(training, tmp_path_factory):
    """An undisturbed run on one rank."""
    run = KilledRun(tmp_path_factory.mktemp("undisturbed") / "run", ranks=1)
    run.to_the_end()
    return run


def test_a_run_on_one_rank_that_is_killed_in_every_phase_ends_in_the_same_bits(undisturbed, tmp_path):
    killed = KilledRun(tmp_path / "killed", ranks=1)
    killed.to_the_end(KILLS)
    assert set(killed.struck()) == {fault["name"] for fault in KILLS}
    check_same_end(killed, undisturbed)


def test_the_killed_ladder_grows_from_no_layers_and_between_old_ones_without_a_jump(undisturbed):
    stages = undisturbed.directory / "stages"
    finals = [read_manifest(stages / name / "final").model for name in ("0-small", "1-middle", "2-large")]
    assert [model.block_ids for model in finals] == [(), (0, 1), (0, 2, 1, 3)]
    found = losses(undisturbed.directory)
    assert found["1-middle", 0, "after_growth"] == pytest.approx(found["0-small", 10, "final"], abs=EXACT_GROWTH)
    assert found["2-large", 0, "after_growth"] == pytest.approx(found["1-middle", 10, "final"], abs=EXACT_GROWTH)


def test_stages_of_other_batches_and_contexts_read_no_token_twice(undisturbed):
    read, ends = [], [0]
    for stage in ("0-small", "1-middle", "2-large"):
        directory = undisturbed.directory / "stages" / stage
        spec = TrainSpec.model_validate_json((directory / "spec.json").read_bytes())
        dataset = Path(spec.dataset)
        samples = TrainingSamples(dataset, spec.sequence_length, spec.seed, window_length=spec.window_length)
        assert spec.samples_seen * spec.sequence_length == ends[-1]
        number, num_tokens = spec.num_steps * spec.batch_size, samples.num_windows * 32
        stream = len(TokenSplit(dataset, "train"))
        for start in samples.places(spec.samples_seen, number)[:, 1].tolist():
            read += [(start + place) % stream for place in range(spec.sequence_length)]
        ends.append(ends[-1] + number * spec.sequence_length)
        final = read_manifest(directory / "final")
        assert final.samples_seen * spec.sequence_length == ends[-1]
        own = final.lineage.training.own_context_loss
        assert (own is None) == (stage == "2-large"), "its own context is the one that all losses are measured at"
    assert ends == [0, 10 * 128, 10 * 128 + 10 * 256, 10 * 128 + 22 * 256]
    assert len(set(read[:num_tokens])) == len(read[:num_tokens]), "within the first epoch"
