"""Sums over attempts equal the work done, however often and wherever a stage is killed."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growctl.ledger.entries import Cost, WorkEntry
from growctl.ledger.ledger import Ledger, split_by_resumes
from tests.growctl.ledger.records import BASE, RUN, Metrics, killed_once, rows

NUM_STEPS = 12
STAGE = replace(BASE, num_steps=NUM_STEPS, budget_tokens=NUM_STEPS * 100)


WORK = WorkEntry(
    stage="0-small",
    attempt=1,
    first_step=0,
    last_step=1,
    num_records=1,
    closed_by="end",
    peak_gpu_bytes=None,
    peak_resident_bytes=None,
    device="cpu",
    num_devices=1,
    precision="fp32",
    paid_by=None,
    recorded_at="",
)


@dataclass(frozen=True)
class Done:
    """What one attempt did, as its workers know it."""

    resumed_from: int
    last_step: int
    num_devices: int
    seconds: float
    peak_bytes: int
    recomputed: float
    """FLOPs of a step that activation checkpointing added."""

    @property
    def steps(self) -> int:
        return self.last_step - self.resumed_from


@st.composite
def killed_runs(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[Done]]:
    """The records of a stage that is killed a few times at any record, and what each attempt did.

    As in a worker, `usage` precedes each line of `train`, `checkpoint` and `end`.
    """
    records: list[dict[str, Any]] = []
    done: list[Done] = []
    durable = [0]
    for number in range(1, 7):
        resumed_from = draw(st.sampled_from(durable[-2:]))  # the newest checkpoint, or the one before if broken
        durable = [step for step in durable if step <= resumed_from]
        metrics = Metrics()
        recomputed = draw(st.sampled_from([0.0, 3e5]))  # the setting may change when a run resumes
        metrics.start(number, resumed_from or None, num_devices=draw(st.integers(1, 4)), recomputed=recomputed)
        metrics.usage(gpu_bytes=draw(st.integers(1, 10**9)))
        saved_at: list[tuple[int, int]] = []
        for step in range(resumed_from + 1, NUM_STEPS + 1):
            metrics.train(1)
            metrics.usage()
            if draw(st.booleans()):
                metrics.evaluate()
            if step < NUM_STEPS and draw(st.booleans()):
                metrics.usage()
                metrics.checkpoint()
                saved_at.append((len(metrics.records), step))
        metrics.usage()
        metrics.end()
        total = len(metrics.records)
        survives = total if number == 6 else draw(st.integers(2, total))
        kept = metrics.records[:survives]
        durable += [step for count, step in saved_at if count <= survives]
        usage = [record for record in kept if record["event"] == "usage"]
        steps = max(record["step"] for record in kept)
        peak = max(record["peak_gpu_bytes"] for record in usage)
        devices, seconds = metrics.records[0]["num_devices"], kept[-1]["seconds"]
        done.append(Done(resumed_from, steps, devices, seconds, peak, recomputed))
        records += kept
        if survives == total:
            return records, done
    raise AssertionError("the last attempt comes to the end")


def kept_steps(done: list[Done]) -> list[int]:
    """The steps of each attempt that no later attempt did again: the last path."""
    later = [min((after.resumed_from for after in done[n + 1 :]), default=NUM_STEPS) for n in range(len(done))]
    return [max(0, min(one.last_step, end) - one.resumed_from) for one, end in zip(done, later, strict=True)]


@settings(max_examples=40)
@given(killed=killed_runs(), data=st.data())
def test_kept_and_replayed_work_is_all_the_work_and_kept_work_is_the_last_path(
    killed: tuple[list[dict[str, Any]], list[Done]], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    records, done = killed
    with Ledger(tmp_path_factory.mktemp("sums") / "ledger.db") as ledger:
        ledger.record_run(RUN, [STAGE])
        for length in sorted(data.draw(st.lists(st.integers(0, len(records)), max_size=3))):
            ledger.books(STAGE.name).sync(records[:length])  # a runner that then dies; the next one books on
        ledger.books(STAGE.name).sync(records)
        cost, work = ledger.stage_cost(STAGE.name), ledger.work(STAGE.name)

    spent, steps = cost.kept + cost.replayed, sum(one.steps for one in done)
    assert spent == cost.spent
    assert (spent.steps, spent.tokens) == (steps, 100 * steps)
    assert spent.flops.total == pytest.approx(9e5 * steps)
    assert spent.recomputed_flops == pytest.approx(sum(one.recomputed * one.steps for one in done))
    assert cost.kept.steps == sum(kept_steps(done)) == NUM_STEPS
    assert cost.replayed.steps == steps - NUM_STEPS

    device_seconds = sum(one.seconds * one.num_devices for one in done)
    assert spent.wall_seconds == pytest.approx(sum(one.seconds for one in done))
    assert spent.device_seconds == pytest.approx(device_seconds)
    assert spent.step_seconds == pytest.approx(steps)  # a step takes a second
    assert spent.money == pytest.approx(3.6 * device_seconds / 3600)
    last_usage = {record["attempt"]: record for record in records if record["event"] == "usage"}
    assert spent.gpu_joules == pytest.approx(sum(record["gpu_joules"] for record in last_usage.values()))
    path = (100.0 * kept * one.num_devices for kept, one in zip(kept_steps(done), done, strict=True))
    assert (cost.kept.gpu_joules or 0.0) <= sum(path) + 1e-6, (
        "what an attempt used after its last measurement is not known"
    )
    peaks = [row.peak_gpu_bytes for row in work if row.peak_gpu_bytes]
    assert max(peaks) == max(one.peak_bytes for one in done)


def test_each_row_has_the_energy_since_the_row_before(ledger: Ledger) -> None:
    metrics = Metrics()
    metrics.start(1)
    metrics.usage()
    metrics.train(20)
    metrics.usage()
    metrics.checkpoint()
    metrics.train(10)
    metrics.usage()
    metrics.train(3)
    ledger.books("0-small").sync(metrics.records, attempt_over=True)
    first, second = rows(ledger, "work")
    assert (first["gpu_joules"], second["gpu_joules"]) == (4000.0, 2000.0), "the last 3 steps were not measured"
    assert (first["step_seconds"], second["step_seconds"]) == (20.0, 13.0)
    assert first["available_flops"] == 20.0 * 2 * 1e6
    assert first["money"] == first["device_seconds"] / 3600 * 3.6


def test_replayed_energy_and_money_are_those_of_the_replayed_steps(ledger: Ledger) -> None:
    metrics = Metrics()
    metrics.start(1)
    metrics.train(20)
    metrics.usage()
    metrics.checkpoint()
    metrics.train(7)
    metrics.usage()
    metrics.start(2, resumed_from=20)
    metrics.train(20)
    metrics.usage()
    metrics.end()
    ledger.books("0-small").sync(metrics.records)
    cost = ledger.stage_cost("0-small")
    assert (cost.kept.gpu_joules, cost.replayed.gpu_joules) == (8000.0, 1400.0)
    assert cost.replayed.money == pytest.approx(3.6 * 2 * 7 / 3600)


def test_what_a_machine_cannot_measure_is_unknown_and_not_zero(ledger: Ledger) -> None:
    metrics = Metrics()
    metrics.start(1)
    metrics.usage(gpu_joules=None, peak_gpu_bytes=None)
    metrics.train(40)
    metrics.usage(gpu_joules=None, peak_gpu_bytes=None)
    metrics.end()
    ledger.books("0-small").sync(metrics.records)
    spent = ledger.stage_cost("0-small").spent
    assert spent.gpu_joules is None
    [row] = ledger.work("0-small")
    assert (row.peak_gpu_bytes, row.peak_resident_bytes) == (None, 10**9)


def test_one_attempt_without_a_counter_makes_the_energy_of_the_stage_unknown(ledger: Ledger) -> None:
    ledger.books("0-small").sync(killed_once(resumed_from=20).records)
    assert ledger.stage_cost("0-small").spent.gpu_joules is None


def test_mfu_is_the_share_of_the_peak_in_steps_alone(ledger: Ledger) -> None:
    metrics = Metrics()
    metrics.start(1)
    metrics.train(40)
    metrics.evaluate("final")
    metrics.end()
    ledger.books("0-small").sync(metrics.records)
    spent = ledger.stage_cost("0-small").spent
    assert spent.mfu == pytest.approx(9e5 / (2 * 1e6))  # one step a second on two devices, whatever start-up takes
    assert spent.step_seconds == 40.0 < spent.wall_seconds


def test_a_device_without_a_known_peak_has_no_mfu_and_one_in_the_table_has_its_own(ledger: Ledger) -> None:
    for stage, device in (("0-small", "CPU AMD EPYC"), ("1-large", "NVIDIA H100 80GB HBM3")):
        metrics = Metrics()
        metrics.start(1)
        metrics.records[0] |= {"device": device, "precision": "bf16", "peak_flops": None}
        metrics.train(40)
        metrics.end()
        ledger.books(stage).sync(metrics.records)
    assert ledger.stage_cost("0-small").spent.mfu is None
    assert ledger.stage_cost("1-large").spent.mfu == pytest.approx(2.3e6 / (2 * 989e12))


def test_a_price_that_changes_at_a_resume_counts_from_there_on(ledger: Ledger) -> None:
    metrics = killed_once(resumed_from=20)
    [again] = (record for record in metrics.records if record["event"] == "start" and record["attempt"] == 2)
    again |= {"price_per_device_hour": 7.2}
    ledger.books("0-small").sync(metrics.records)
    cost = ledger.stage_cost("0-small")
    assert cost.replayed.money == pytest.approx(3.6 * 2 * 8 / 3600)
    assert cost.kept.money == pytest.approx((3.6 * 2 * 31 + 7.2 * 2 * 32) / 3600)


def test_a_share_of_an_unknown_cost_is_unknown_but_no_part_of_it_is_nothing() -> None:
    unknown = Cost(steps=10, tokens=1000, money=None)
    assert unknown.share(0.5).money is None
    assert unknown.share(0.0).money == 0.0
    assert (Cost(money=1.0) + unknown).money is None


@given(st.data())
def test_every_step_is_kept_rolled_back_or_replayed_as_the_attempts_went(data: st.DataObject) -> None:
    """Against a run step by step: each attempt resumes at a checkpoint, and gives up the steps behind it."""
    rows: list[tuple[int, int, int]] = []
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
            holder |= dict.fromkeys(range(step, step + num_steps), len(rows))
            rows.append((attempt, step, step + num_steps))
            step += num_steps
            checkpoints |= {step} if data.draw(st.booleans()) else set()
    for row, (attempt, first, last) in enumerate(rows):
        shares = split_by_resumes(replace(WORK, first_step=first, last_step=last), resumed[attempt:])
        own = [given_up.get((row, step)) for step in range(first, last)]
        assert (shares.kept, shares.rolled_back) == (own.count(None) / len(own), own.count(True) / len(own))
