"""A run of one rank that is killed at chosen points, many times, resumes and ends in the same bits."""

import pytest

from model.policy import EXACT_GROWTH
from stages.checkpoint.manifest import read_manifest
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
    BY_NAME["disk error, rank"].fault("full", "ENOSPC", "large", nth=5),
    BY_NAME["disk error, runner"].fault("io", "EIO", nth=12),
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
    finals = [read_manifest(stages / name / "final") for name in ("0-small", "1-middle", "2-large")]
    assert [final.model.block_ids for final in finals] == [(), (0, 1), (0, 2, 1, 3)]
    assert [final.samples_seen * length for final, length in zip(finals, (16, 16, 32), strict=True)] == [
        *(10 * 128, 10 * 128 + 10 * 256, 10 * 128 + 22 * 256)
    ]
    specs = [TrainSpec.model_validate_json((stages / n / "spec.json").read_bytes()) for n in ("1-middle", "2-large")]
    assert [spec.samples_seen * spec.sequence_length for spec in specs] == [10 * 128, 10 * 128 + 10 * 256]
    assert {spec.window_length for spec in specs} == {32}
    assert [final.lineage.training.own_context_loss is None for final in finals] == [False, False, True]
    found = losses(undisturbed.directory)
    assert found["1-middle", 0, "after_growth"] == pytest.approx(found["0-small", 10, "final"], abs=EXACT_GROWTH)
    assert found["2-large", 0, "after_growth"] == pytest.approx(found["1-middle", 10, "final"], abs=EXACT_GROWTH)
