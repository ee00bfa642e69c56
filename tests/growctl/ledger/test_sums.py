"""Sums over attempts equal the work done, however often and wherever a stage is killed and booked."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growctl.ledger.entries import WorkEntry
from growctl.ledger.ledger import Ledger, split_by_resumes
from tests.growctl.ledger.records import BASE, NUM_STEPS, RUN, Done, killed_runs, rows

STAGE = replace(BASE, num_steps=NUM_STEPS, budget_tokens=NUM_STEPS * 100)

Killed = tuple[list[dict[str, Any]], list[Done]]


@contextmanager
def two_ledgers(factory: pytest.TempPathFactory) -> Iterator[tuple[Ledger, Ledger]]:
    folder = factory.mktemp("ledgers")
    with Ledger(folder / "once.db") as once, Ledger(folder / "pieces.db") as pieces:
        for ledger in (once, pieces):
            ledger.record_run(RUN, [STAGE])
        yield once, pieces


def assert_same_rows(one: Ledger, other: Ledger) -> None:
    for table, position in {"work": "num_records", "evaluation": "step", "attempt": "attempt"}.items():
        found = [sorted(rows(each, table), key=lambda row: (row["attempt"], row[position])) for each in (one, other)]
        assert found[0] == found[1]


def kept_steps(done: list[Done]) -> list[int]:
    """The recorded steps of each attempt that no later attempt did again: the last path."""
    later = [min((after.resumed_from for after in done[n + 1 :]), default=NUM_STEPS) for n in range(len(done))]
    return [max(0, min(one.last_step, end) - one.resumed_from) for one, end in zip(done, later, strict=True)]


@pytest.mark.slow
@settings(max_examples=90)
@given(killed=killed_runs(), data=st.data())
def test_any_history_of_kills_adds_up_and_any_way_of_booking_it_gives_the_same_rows(killed, data, tmp_path_factory):
    """Even if `start` records are lost, although only they tell where an attempt resumed."""
    records, done = killed
    lost = data.draw(st.just(set()) | st.sets(st.integers(1, 7)))
    records = [record for record in records if record["event"] != "start" or record["attempt"] not in lost]
    with two_ledgers(tmp_path_factory) as (once, followed):
        once.books(STAGE.name).sync(records)
        books, begin = followed.books(STAGE.name), 0
        for end in [*sorted(data.draw(st.lists(st.integers(0, len(records)), max_size=8))), len(records)]:
            if begin and data.draw(st.booleans()):
                books, begin = followed.books(STAGE.name), 0  # another runner, which reads from the start
            if data.draw(st.booleans()):
                books.add(records[begin:end])
            else:
                over = 0 < end < len(records) and records[end]["event"] == "start"
                books.sync(records[begin:end], attempt_over=over and data.draw(st.booleans()))
            begin = end
        books.sync()
        followed.books(STAGE.name).sync(records)
        assert_same_rows(once, followed)
        if len(records) < len(killed[0]):
            return
        assert once.finished(STAGE.name)
        cost, work, final = once.stage_cost(STAGE.name), once.work(STAGE.name), once.evaluations(STAGE.name)[-1]

    unrecorded = sum(one.unrecorded for one in done)
    spent, steps = cost.kept + cost.replayed, sum(one.steps for one in done) + unrecorded
    assert spent == cost.spent
    assert (spent.steps, cost.kept.steps, spent.tokens) == (steps, NUM_STEPS, 100 * steps)
    assert cost.kept.tokens + cost.replayed.tokens == 100 * steps
    assert spent.flops.total == pytest.approx(9e5 * steps)
    assert (final.point, final.flops) == ("final", pytest.approx(9e5 * steps))

    device_seconds = sum(one.seconds * one.num_devices for one in done)
    assert spent.wall_seconds == pytest.approx(sum(one.seconds for one in done))
    assert spent.device_seconds == pytest.approx(device_seconds)
    assert spent.money == pytest.approx(3.6 * device_seconds / 3600)
    last_usage = {record["attempt"]: record for record in records if record["event"] == "usage"}
    assert spent.gpu_joules == pytest.approx(sum(record["gpu_joules"] for record in last_usage.values()))
    assert max(row.peak_gpu_bytes or 0 for row in work) == max(one.peak_bytes for one in done)
    if not unrecorded:  # a later attempt books the others, at its own figures
        assert cost.kept.steps == sum(kept_steps(done))
        assert spent.step_seconds == pytest.approx(steps)  # a step takes a second
        assert spent.recomputed_flops == pytest.approx(sum(one.recomputed * one.steps for one in done))
        path = (100.0 * kept * one.num_devices for kept, one in zip(kept_steps(done), done, strict=True))
        assert (cost.kept.gpu_joules or 0.0) <= sum(path) + 1e-6, "what an attempt used at its end is not known"


@pytest.mark.slow
@settings(max_examples=30)
@given(killed=killed_runs(), data=st.data())
def test_lost_metrics_lines_never_stop_a_run_and_nothing_counts_twice(killed, data, tmp_path_factory):
    records, done = killed
    path, read = tmp_path_factory.mktemp("lost") / "ledger.db", 0
    with Ledger(path) as ledger:
        ledger.record_run(RUN, [STAGE])
        while read < len(records):
            read = data.draw(st.integers(read + 1, len(records)))
            ledger.books(STAGE.name).sync(records[:read])
            if data.draw(st.booleans()):
                lost = data.draw(st.sets(st.integers(0, read - 1)))
                kept = [record for number, record in enumerate(records[:read]) if number not in lost]
                records, read = kept + records[read:], len(kept)
                ledger.books(STAGE.name).sync(kept, attempt_over=data.draw(st.booleans()))
        ledger.books(STAGE.name).sync(records, attempt_over=True)
        cost = ledger.stage_cost(STAGE.name)
        assert cost.kept.steps <= NUM_STEPS
        assert cost.spent.steps <= sum(one.steps + one.unrecorded for one in done)
        ledger.evaluations(STAGE.name)
    with Ledger(path) as ledger:
        assert ledger.stage_cost(STAGE.name) == cost


@pytest.mark.slow
@given(st.data())
def test_every_step_is_kept_rolled_back_or_replayed_as_the_attempts_went(data: st.DataObject) -> None:
    """Against a run step by step: each attempt resumes at a checkpoint, and gives up the steps behind it."""
    spans: list[tuple[int, int, int]] = []
    resumed: list[tuple[int, bool]] = []
    holder: dict[int, int] = {}
    given_up: dict[tuple[int, int], bool] = {}
    checkpoints = {0}
    for attempt in range(data.draw(st.integers(1, 6))):
        step = data.draw(st.sampled_from(sorted(checkpoints))) if attempt else 0
        if attempt:
            resumed.append((step, data.draw(st.booleans())))
            given_up |= {(holder.pop(behind), behind): resumed[-1][1] for behind in [*holder] if behind >= step}
            checkpoints = {each for each in checkpoints if each <= step}
        for num_steps in data.draw(st.lists(st.integers(1, 5), max_size=3)):
            holder |= dict.fromkeys(range(step, step + num_steps), len(spans))
            spans.append((attempt, step, step + num_steps))
            step += num_steps
            checkpoints |= {step} if data.draw(st.booleans()) else set()
    unused: dict[str, Any] = {"stage": "0-small", "attempt": 1, "num_records": 1, "closed_by": "end", "num_devices": 1}
    unused |= dict.fromkeys(("recorded_at", "device", "precision"), "")
    unused |= dict.fromkeys(("paid_by", "peak_gpu_bytes", "peak_resident_bytes"))
    for row, (attempt, first, last) in enumerate(spans):
        work = WorkEntry(**unused, first_step=first, last_step=last)
        shares = split_by_resumes(work, resumed[attempt:])
        own = [given_up.get((row, step)) for step in range(first, last)]
        assert (shares.kept, shares.rolled_back) == (own.count(None) / len(own), own.count(True) / len(own))
