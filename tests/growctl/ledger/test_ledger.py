"""The ledger: rows from metrics, replayed steps, and history that is never lost."""

import errno
from dataclasses import replace
from typing import Any

import pytest

from growctl.ledger.entries import AnomalyEntry, Cost, WorkEntry
from growctl.ledger.file import TABLES
from growctl.ledger.ledger import Ledger
from model.flops import Flops
from tests.growctl.ledger.records import BASE, GROWN, RUN, Metrics, extents, killed_once, rows
from tests.stages.test_metrics import EVENTS


def booked(ledger: Ledger, metrics: Metrics, stage: str = "0-small", attempt_over: bool = False) -> Ledger:
    """The ledger, with what a runner that starts now books of a stage."""
    ledger.books(stage).sync(metrics.records, attempt_over=attempt_over)
    return ledger


def test_rows_close_at_checkpoints_and_at_the_end(ledger: Ledger) -> None:
    metrics = Metrics().start(1).train(20).evaluate().checkpoint().train(20)
    assert extents(booked(ledger, metrics)) == [(1, 0, 20, "checkpoint")]
    booked(ledger, metrics.evaluate("final", loss=1.2).end())
    assert extents(ledger) == [(1, 0, 20, "checkpoint"), (1, 20, 40, "end")]
    first, second = rows(ledger, "work")
    assert (first["tokens"], first["flops_parameters"], first["flops_head"]) == (2000, 20 * 6e5, 20 * 1e5)
    assert (first["wall_seconds"], first["device_seconds"]) == (32.0, 64.0)  # 10 of start-up, 20 steps, 2 lines
    assert (second["wall_seconds"], second["num_devices"], second["device"]) == (22.0, 2, "cpu")
    assert first["evaluation_flops"] == second["evaluation_flops"] == 3000.0 * 1000

    cost = ledger.stage_cost("0-small")
    assert cost.replayed == Cost()
    assert cost.kept.money == pytest.approx(108 / 3600 * 3.6)
    measured = replace(cost.kept, money=0.0)
    assert measured == Cost(40, 4000, Flops(24e6, 8e6, 4e6), 6e6, 54.0, 108.0, 40.0, 40 * 2e6, None)
    assert ledger.finished("0-small")
    final = ledger.evaluations("0-small")[-1]
    assert (final.point, final.step, final.loss, final.flops) == ("final", 40, 1.2, 36e6)


def test_evaluations_cost_no_training_flops_and_those_at_the_own_context_their_own(ledger: Ledger) -> None:
    metrics = Metrics().start(1).evaluate(own_context_loss=1.25, own_context_tokens=100).end()
    spent = booked(ledger, metrics, "1-large").stage_cost("1-large").spent
    assert (spent.flops.total, spent.evaluation_flops) == (0.0, 8000.0 * 1000 + 10.0 * 100)
    [evaluation] = ledger.evaluations("1-large")
    assert (evaluation.own_context_loss, evaluation.own_context_tokens) == (1.25, 100)


def test_mfu_is_the_share_of_a_known_peak_in_steps_alone_and_each_stage_has_its_own(ledger: Ledger) -> None:
    known: dict[str, Any] = {"device": "NVIDIA H100 80GB HBM3", "precision": "bf16", "peak_flops": None}
    booked(ledger, Metrics().start(1).train(40).evaluate("final").end())
    booked(ledger, Metrics().start(1, **known).train(30).end(), "1-large")
    small, large = ledger.stage_cost("0-small").spent, ledger.stage_cost("1-large").spent
    assert small.mfu == pytest.approx(9e5 / (2 * 1e6))  # one step a second on two devices, whatever start-up takes
    assert small.step_seconds == 40.0 < small.wall_seconds
    assert (large.steps, large.tokens, large.flops) == (30, 3000, Flops(60e6, 6e6, 3e6))
    assert (large.device_seconds, large.mfu) == (82.0, pytest.approx(2.3e6 / (2 * 989e12)))


def test_work_reused_from_another_run_is_no_cost_of_this_one_even_if_it_is_repeated(ledger: Ledger) -> None:
    reused = {"event": "reused", "attempt": 1, "step": 20, "seconds": 0.0} | EVENTS["reused"]
    evaluation = {"event": "evaluation", "attempt": 1, "step": 20, "seconds": 0.0} | EVENTS["evaluation"]
    ledger.books("0-small").sync([reused])
    ledger.books("0-small").sync([reused, evaluation], attempt_over=True)  # as after a kill between the two
    cost = booked(ledger, Metrics().start(2, resumed_from=10).train(30).end()).stage_cost("0-small")
    assert (cost.reused.steps, cost.reused.device_seconds) == (10, 12.5 / 2)
    assert (cost.kept.steps, cost.replayed, cost.spent) == (30, Cost(), cost.kept)


def test_a_stage_is_finished_once_booked_and_a_worker_that_outlives_its_runner_counts_once(ledger: Ledger) -> None:
    metrics = Metrics().start(1).train(39)
    booked(ledger, metrics, attempt_over=True)
    metrics.train(1).evaluate("final")
    assert not booked(ledger, metrics).finished("0-small")
    assert booked(ledger, metrics, attempt_over=True).finished("0-small")
    assert extents(ledger) == [(1, 0, 39, "interruption"), (1, 39, 40, "interruption")]
    assert ledger.stage_cost("0-small").spent.wall_seconds == 51.0


def test_records_of_a_failed_sync_are_booked_by_the_next_one(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    records = killed_once(resumed_from=20).records
    books = ledger.books("0-small")
    books.sync(records[:3])
    before = {table: rows(ledger, table) for table in TABLES}
    append = ledger.append

    def full(entry: Any, **named: Any) -> None:
        append(entry, **named)
        if isinstance(entry, WorkEntry):
            raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "append", full)
        with pytest.raises(OSError, match="full"):
            books.sync(records[3:])
    assert {table: rows(ledger, table) for table in TABLES} == before
    books.sync(attempt_over=True)
    assert extents(ledger) == [(1, 0, 20, "checkpoint"), (1, 20, 27, "interruption"), (2, 20, 40, "end")]
    assert [evaluation.point for evaluation in ledger.evaluations("0-small")] == ["final"]


def test_anomalies_are_stored_once_and_in_order_and_nan_as_null(ledger: Ledger) -> None:
    metrics = Metrics().start(1).train(7).anomaly()
    unknown = dict.fromkeys(("threshold", "first_step", "num_steps"))
    metrics.anomaly(kind="non_finite", value=float("nan"), action="stop", **unknown).evaluate(loss=float("nan"))
    for _ in range(2):
        booked(ledger, metrics)
    assert ledger.anomalies("0-small") == [
        AnomalyEntry("0-small", 1, 7, 18.0, "spike", 9.5, 6.0, "skip", 7, 1),
        AnomalyEntry("0-small", 1, 7, 19.0, "non_finite", None, None, "stop", None, None),
    ]
    assert ledger.anomalies("1-large") == []
    assert [evaluation.loss for evaluation in ledger.evaluations("0-small")] == [None]
    ledger.close()
    with Ledger(ledger.path):
        """Rows with NaN have a valid hash too."""


def test_an_attempt_whose_start_is_lost_is_booked_like_the_one_before(ledger: Ledger) -> None:
    metrics = killed_once(resumed_from=20)
    metrics.records = [r for r in metrics.records if (r["event"], r["attempt"]) != ("start", 2)]
    booked(ledger, metrics)
    assert extents(ledger) == [(1, 0, 20, "checkpoint"), (1, 20, 27, "interruption"), (2, 27, 40, "end")]
    assert [row["num_devices"] for row in rows(ledger, "work")] == [2, 2, 2]


def test_a_clock_that_jumps_back_subtracts_no_seconds(ledger: Ledger) -> None:
    metrics = Metrics().start(1).train(20).checkpoint()
    metrics.seconds -= 3600
    metrics.train(5).checkpoint()
    metrics.seconds += 3600
    booked(ledger, metrics.train(15).end())
    assert [row["wall_seconds"] for row in rows(ledger, "work")] == [31.0, 0.0, 22.0]


def test_the_launch_of_a_resumed_run_may_change_and_is_remembered(ledger: Ledger) -> None:
    assert ledger.relaunched() == []
    for zero_stage in (2, 2, 3, 2):
        conditions = RUN.conditions | {"launch.zero_stage": zero_stage}
        ledger.record_run(replace(RUN, conditions=conditions), [BASE, GROWN])
    assert ledger.relaunched() == ["launch.zero_stage"]
    assert ledger.run().conditions == RUN.conditions
    assert len(rows(ledger, "run")) == 3


def test_energy_and_money_are_those_of_a_rows_steps_and_unmeasured_steps_have_none(ledger: Ledger) -> None:
    metrics = Metrics().start(1).usage().train(20).usage().checkpoint().train(7).usage().train(3)
    metrics.start(2, resumed_from=20, price_per_device_hour=7.2).train(20).usage().end()
    first, second, _ = rows(booked(ledger, metrics), "work")
    assert (first["gpu_joules"], second["gpu_joules"]) == (4000.0, 1400.0)
    assert (first["step_seconds"], second["step_seconds"], first["available_flops"]) == (20.0, 10.0, 20.0 * 2 * 1e6)
    cost = ledger.stage_cost("0-small")
    assert (cost.kept.gpu_joules, cost.replayed.gpu_joules) == (8000.0, 1400.0)
    assert cost.replayed.money == pytest.approx(3.6 * 2 * 10 / 3600)
    assert cost.kept.money == pytest.approx((3.6 * 2 * 31 + 7.2 * 2 * 31) / 3600), "the price changed at the resume"


def test_what_a_machine_cannot_measure_is_unknown_and_not_zero(ledger: Ledger) -> None:
    unknown: dict[str, Any] = dict.fromkeys(("gpu_joules", "peak_gpu_bytes"))
    booked(ledger, Metrics().start(1).usage(**unknown).train(40).usage(**unknown).end())
    assert ledger.stage_cost("0-small").spent.gpu_joules is None
    [row] = ledger.work("0-small")
    assert (row.peak_gpu_bytes, row.peak_resident_bytes) == (None, 10**9)


def test_a_share_of_an_unknown_cost_is_unknown_but_no_part_of_it_is_nothing() -> None:
    unknown = Cost(steps=10, tokens=1000, money=None)
    assert unknown.share(0.5).money is None
    assert unknown.share(0.0).money == 0.0
    assert (Cost(money=1.0) + unknown).money is None
