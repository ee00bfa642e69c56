"""Kills at chosen points, many in one run: run again, it ends in the same bits. The other ranks' are beside this."""

from tests.reliability.harness import KilledRun, check_same_end
from tests.reliability.points import BY_NAME

KILLS = [
    BY_NAME["data: before its rename"].fault("data", "runner"),
    BY_NAME["schedule.yaml: before its rename"].fault("schedule", "runner"),
    BY_NAME["ledger: no run in it yet"].fault("ledger", "runner"),
    BY_NAME["spec.json: before its rename"].fault("spec", "runner SIGINT", "small"),
    BY_NAME["checkpoint: a file half written"].fault("torn", "one rank", "small", nth=2),
    BY_NAME["expand: initial/ half written"].fault("expand", "runner", "middle", nth=4),
    BY_NAME["step: gradients there, no update"].fault("step", "runner SIGTERM", "middle", nth=5),
    BY_NAME["checkpoint: rows written, not committed"].fault("booked", "runner", nth=4),
]


def test_a_run_on_one_rank_that_is_killed_eight_times_ends_in_the_same_bits(tmp_path):
    undisturbed = KilledRun(tmp_path / "undisturbed", ranks=1)
    undisturbed.to_the_end()
    killed = KilledRun(tmp_path / "killed", ranks=1)
    killed.to_the_end(KILLS)
    assert set(killed.struck()) == {fault["name"] for fault in KILLS}
    check_same_end(killed, undisturbed)
