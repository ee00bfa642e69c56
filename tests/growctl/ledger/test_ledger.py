"""The ledger: rows from metrics, replayed steps, and history that is never lost."""

import errno
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growctl.ledger.entries import AnomalyEntry, Cost, WorkEntry
from growctl.ledger.file import TABLES
from growctl.ledger.ledger import Ledger
from model.flops import Flops
from tests.growctl.ledger.records import BASE, GROWN, RUN, Metrics, extents, killed_once, rows


def test_rows_close_at_checkpoints_and_at_the_end(ledger: Ledger) -> None:
    metrics = Metrics()
    metrics.start(1)
    metrics.train(20)
    metrics.evaluate()
    metrics.checkpoint()
    metrics.train(20)
    ledger.books("0-small").sync(metrics.records)
    assert extents(ledger) == [(1, 0, 20, "checkpoint")]
    metrics.evaluate("final", loss=1.2)
    metrics.end()
    ledger.books("0-small").sync(metrics.records)
    first, second = rows(ledger, "work")
    assert extents(ledger) == [(1, 0, 20, "checkpoint"), (1, 20, 40, "end")]
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


def test_evaluations_cost_no_training_flops(ledger: Ledger) -> None:
    metrics = Metrics()
    metrics.start(1)
    metrics.evaluate("after_growth")
    metrics.end()
    ledger.books("1-large").sync(metrics.records)
    total = ledger.stage_cost("1-large").spent
    assert total.flops.total == 0.0
    assert total.evaluation_flops == 8000.0 * 1000


def test_an_evaluation_at_the_stages_own_context_costs_its_own_flops(tmp_path: Path) -> None:
    stages = [replace(BASE, own_evaluation_flops_per_token=10.0, sequence_length=8)]
    metrics = Metrics()
    metrics.start(1)
    metrics.evaluate()
    metrics.records[-1] |= {"own_context_loss": 1.25, "own_context_tokens": 100}
    metrics.end()
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.record_run(RUN, stages)
        ledger.books("0-small").sync(metrics.records)
        assert ledger.stage_cost("0-small").spent.evaluation_flops == 3000.0 * 1000 + 10.0 * 100
        [evaluation] = ledger.evaluations("0-small")
        assert (evaluation.own_context_loss, evaluation.own_context_tokens) == (1.25, 100)


def test_every_stage_has_costs_of_its_own(ledger: Ledger) -> None:
    for stage, steps in (("0-small", 40), ("1-large", 30)):
        metrics = Metrics()
        metrics.start(1)
        metrics.train(steps)
        metrics.end()
        ledger.books(stage).sync(metrics.records)
    small, large = ledger.stage_cost("0-small").spent, ledger.stage_cost("1-large").spent
    assert (small.steps, small.tokens, small.flops) == (40, 4000, Flops(24e6, 8e6, 4e6))
    assert (large.steps, large.tokens, large.flops) == (30, 3000, Flops(60e6, 6e6, 3e6))
    assert (small.device_seconds, large.device_seconds) == (102.0, 82.0)  # 2 devices: start-up, steps and 1 line


def test_repeated_steps_count_as_replayed_and_stay_in_the_cost(ledger: Ledger) -> None:
    metrics = killed_once(resumed_from=20)
    ledger.books("0-small").sync(metrics.records)
    assert extents(ledger) == [(1, 0, 20, "checkpoint"), (1, 20, 27, "interruption"), (2, 20, 40, "end")]
    cost = ledger.stage_cost("0-small")
    assert (cost.kept.steps, cost.replayed.steps, cost.spent.tokens) == (40, 7, 4700)
    assert cost.spent.flops.total == pytest.approx(47 * 9e5)
    assert cost.replayed.device_seconds == 2 * 8.0
    assert cost.spent.wall_seconds == 31 + 8 + 32
    assert [e.point for e in ledger.evaluations("0-small")] == ["final"], "what was measured at 25 is void"
    assert ledger.evaluations("0-small")[0].flops == 47 * 9e5


@pytest.mark.parametrize(("resumed_from", "replayed", "wall_seconds"), [(15, 5 + 7, 31 * 5 / 20 + 8), (None, 27, 39.0)])
def test_resuming_before_the_last_row_replays_its_steps(
    ledger: Ledger, resumed_from: int | None, replayed: int, wall_seconds: float
) -> None:
    """From within a row, because the checkpoint at 20 was found broken, or from the beginning."""
    ledger.books("0-small").sync(killed_once(resumed_from=resumed_from).records)
    cost = ledger.stage_cost("0-small")
    assert (cost.kept.steps, cost.replayed.steps) == (40, replayed)
    assert cost.replayed.wall_seconds == pytest.approx(wall_seconds)


def test_steps_shown_only_by_the_resume_step_are_counted(ledger: Ledger) -> None:
    """Killed between the checkpoint's rename and its line in metrics.jsonl."""
    metrics = Metrics()
    metrics.start(1)
    metrics.train(15)
    metrics.start(2, resumed_from=20)
    metrics.train(20)
    metrics.end()
    ledger.books("0-small").sync(metrics.records)
    assert extents(ledger) == [(1, 0, 15, "interruption"), (2, 15, 40, "end")]
    assert (ledger.stage_cost("0-small").kept.steps, ledger.stage_cost("0-small").replayed.steps) == (40, 0)


def test_the_seconds_of_an_attempt_without_steps_are_booked(ledger: Ledger) -> None:
    metrics = Metrics()
    metrics.start(1)
    ledger.books("0-small").sync(metrics.records)
    assert extents(ledger) == []
    assert ledger.last_attempt("0-small") == 1
    ledger.books("0-small").sync(metrics.records, attempt_over=True)
    assert extents(ledger) == [(1, 0, 0, "interruption")]
    metrics.start(2)
    metrics.train(40)
    metrics.end()
    ledger.books("0-small").sync(metrics.records)
    assert ledger.stage_cost("0-small").replayed == Cost(
        device_seconds=20.0, wall_seconds=10.0, gpu_joules=None, money=20.0 / 3600 * 3.6
    )


def test_a_stage_counts_as_finished_once_its_steps_are_booked(ledger: Ledger) -> None:
    """Killed after the final evaluation, before `end`."""
    metrics = Metrics()
    metrics.start(1)
    metrics.train(40)
    metrics.evaluate("final")
    ledger.books("0-small").sync(metrics.records)
    assert not ledger.finished("0-small")
    ledger.books("0-small").sync(metrics.records, attempt_over=True)
    assert ledger.finished("0-small")


def test_a_worker_that_outlived_its_runner_is_still_counted_once(ledger: Ledger) -> None:
    metrics = Metrics()
    metrics.start(1)
    metrics.train(7)
    ledger.books("0-small").sync(metrics.records, attempt_over=True)
    metrics.train(1)
    metrics.evaluate()
    ledger.books("0-small").sync(metrics.records, attempt_over=True)
    assert extents(ledger) == [(1, 0, 7, "interruption"), (1, 7, 8, "interruption")]
    assert ledger.stage_cost("0-small").spent.wall_seconds == 19.0


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[dict[str, Any]], int]:
    """The metrics of a stage of 12 steps that is killed a few times, and the steps that its workers trained."""
    metrics, durable, trained = Metrics(), [0], 0
    for attempt in range(1, 8):
        resumed_from = draw(st.sampled_from(durable[-2:]))  # the newest checkpoint, or the one before if broken
        durable = [step for step in durable if step <= resumed_from]
        metrics.start(attempt, resumed_from or None, num_devices=draw(st.integers(1, 4)))
        lives = draw(st.integers(0, 11)) if attempt < 7 else 12
        for step in range(resumed_from + 1, min(resumed_from + lives, 12) + 1):
            metrics.train(1)
            trained += 1
            if draw(st.booleans()):
                metrics.evaluate()
            if step == 12:
                metrics.evaluate("final")
                metrics.end()
                return metrics.records, trained
            if draw(st.booleans()):
                metrics.checkpoint()
                durable.append(step)
        if draw(st.booleans()) and metrics.step < 11 and attempt < 6:
            trained += 1  # one more step and a complete checkpoint, both without a record
            durable = [metrics.step + 1]
    raise AssertionError("the last attempt comes to the end")


@settings(max_examples=60)
@given(history=histories(), data=st.data())
def test_any_history_of_kills_adds_up_and_any_way_of_booking_it_gives_the_same_rows(
    history: tuple[list[dict[str, Any]], int], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    records, trained = history
    stage = replace(BASE, num_steps=12, budget_tokens=1200)
    directory = tmp_path_factory.mktemp("history")
    with Ledger(directory / "once.db") as once, Ledger(directory / "followed.db") as followed:
        for ledger in (once, followed):
            ledger.record_run(RUN, [stage])
        once.books(stage.name).sync(records)
        books, begin = followed.books(stage.name), 0
        for end in [*sorted(data.draw(st.lists(st.integers(0, len(records)), max_size=8))), len(records)]:
            if begin and data.draw(st.booleans()):
                books, begin = followed.books(stage.name), 0  # another runner, which reads from the start
            if data.draw(st.booleans()):
                books.add(records[begin:end])
            else:
                over = 0 < end < len(records) and records[end]["event"] == "start"
                books.sync(records[begin:end], attempt_over=over and data.draw(st.booleans()))
            begin = end
        books.sync()
        followed.books(stage.name).sync(records)
        assert_same_rows(once, followed)

        cost = once.stage_cost(stage.name)
        assert (cost.kept.steps, cost.spent.steps) == (12, trained)
        assert cost.kept.tokens + cost.replayed.tokens == 100 * trained
        assert cost.spent.flops.total == pytest.approx(trained * 9e5)
        last_lines = {record["attempt"]: record["seconds"] for record in records}
        assert cost.spent.wall_seconds == pytest.approx(sum(last_lines.values()))
        final = once.evaluations(stage.name)[-1]
        assert (final.point, final.flops) == ("final", pytest.approx(trained * 9e5))
        assert once.finished(stage.name)


def assert_same_rows(one: Ledger, other: Ledger) -> None:
    for table, position in {"work": "num_records", "evaluation": "step", "attempt": "attempt"}.items():
        found = [sorted(rows(each, table), key=lambda row: (row["attempt"], row[position])) for each in (one, other)]
        assert found[0] == found[1]


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


def test_anomalies_are_stored_once_and_in_order(ledger: Ledger) -> None:
    metrics = Metrics()
    metrics.start(1)
    metrics.train(7)
    metrics.anomaly()
    metrics.anomaly(
        kind="non_finite", value=float("nan"), threshold=None, action="stop", first_step=None, num_steps=None
    )
    for _ in range(2):
        ledger.books("0-small").sync(metrics.records)
    assert ledger.anomalies("0-small") == [
        AnomalyEntry("0-small", 1, 7, 18.0, "spike", 9.5, 6.0, "skip", 7, 1),
        AnomalyEntry("0-small", 1, 7, 19.0, "non_finite", None, None, "stop", None, None),
    ]
    assert ledger.anomalies("1-large") == []
    ledger.close()
    with Ledger(ledger.path):
        """Rows with NaN have a valid hash too."""


def test_an_attempt_whose_start_is_lost_is_booked_like_the_one_before(ledger: Ledger) -> None:
    records = killed_once(resumed_from=20).records
    ledger.books("0-small").sync([r for r in records if (r["event"], r["attempt"]) != ("start", 2)])
    assert extents(ledger) == [(1, 0, 20, "checkpoint"), (1, 20, 27, "interruption"), (2, 27, 40, "end")]
    assert [row["num_devices"] for row in rows(ledger, "work")] == [2, 2, 2]


@settings(max_examples=30)
@given(history=histories(), data=st.data())
def test_rows_do_not_depend_on_the_pieces_that_are_booked_even_if_starts_are_lost(
    history: tuple[list[dict[str, Any]], int], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lost = data.draw(st.sets(st.integers(1, 7)))
    records = [record for record in history[0] if record["event"] != "start" or record["attempt"] not in lost]
    directory = tmp_path_factory.mktemp("pieces")
    with Ledger(directory / "once.db") as once, Ledger(directory / "pieces.db") as pieces:
        for ledger in (once, pieces):
            ledger.record_run(RUN, [BASE])
        once.books(BASE.name).sync(records, attempt_over=True)
        books, cuts = (
            pieces.books(BASE.name),
            data.draw(st.lists(st.integers(0, len(records)), min_size=1, max_size=6)),
        )
        for begin, end in pairwise([0, *sorted(cuts), len(records)]):
            books.sync(records[begin:end])
        books.sync(attempt_over=True)
        assert_same_rows(once, pieces)


def test_a_clock_that_jumps_back_subtracts_no_seconds(ledger: Ledger) -> None:
    metrics = Metrics()
    metrics.start(1)
    metrics.train(20)
    metrics.checkpoint()
    metrics.seconds -= 3600
    metrics.train(5)
    metrics.checkpoint()
    metrics.seconds += 3600
    metrics.train(15)
    metrics.end()
    ledger.books("0-small").sync(metrics.records)
    assert [row["wall_seconds"] for row in rows(ledger, "work")] == [31.0, 0.0, 22.0]


@settings(max_examples=30)
@given(history=histories(), data=st.data())
def test_lost_metrics_lines_never_stop_a_run_and_nothing_counts_twice(
    history: tuple[list[dict[str, Any]], int], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    records, trained = history
    stage = replace(BASE, num_steps=12, budget_tokens=1200)
    path = tmp_path_factory.mktemp("history") / "ledger.db"
    with Ledger(path) as ledger:
        ledger.record_run(RUN, [stage])
        read = 0
        while read < len(records):
            read = data.draw(st.integers(read + 1, len(records)))
            ledger.books(stage.name).sync(records[:read])
            if data.draw(st.booleans()):
                lost = data.draw(st.sets(st.integers(0, read - 1)))
                kept = [record for number, record in enumerate(records[:read]) if number not in lost]
                records, read = kept + records[read:], len(kept)
                ledger.books(stage.name).sync(kept, attempt_over=data.draw(st.booleans()))
        ledger.books(stage.name).sync(records, attempt_over=True)
        cost = ledger.stage_cost(stage.name)
        assert cost.kept.steps <= 12
        assert cost.spent.steps <= trained
        ledger.evaluations(stage.name)
    with Ledger(path) as ledger:
        assert ledger.stage_cost(stage.name) == cost


def test_the_launch_of_a_resumed_run_may_change_and_is_remembered(ledger: Ledger) -> None:
    assert ledger.relaunched() == []
    for zero_stage in (2, 2, 3, 2):
        conditions = RUN.conditions | {"launch.zero_stage": zero_stage}
        ledger.record_run(replace(RUN, conditions=conditions), [BASE, GROWN])
    assert ledger.relaunched() == ["launch.zero_stage"]
    assert ledger.run().conditions == RUN.conditions
    assert len(rows(ledger, "run")) == 3
