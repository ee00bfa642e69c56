"""The ledger: rows from metrics, replayed steps, and history that is never lost."""

import errno
import sqlite3
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growctl.ledger.books import LANDMARKS
from growctl.ledger.file import TABLES, move_aside
from growctl.ledger.ledger import Anomaly, BrokenLedger, Cost, Ledger, LedgerError, RunEntry, StageEntry
from model.flops import Flops

RUN = RunEntry("quick", "quickstart", None, None, 1, "data/bytes", "f00d")
BASE = StageEntry("0-small", 800_000, 200_000, 4000, 40, 100, Flops(6e5, 2e5, 1e5), 3000.0)
GROWN = StageEntry("1-large", 2_400_000, 200_000, 4000, 40, 100, Flops(2e6, 2e5, 1e5), 8000.0)


class Metrics:
    """Writes the records of a stage, one attempt after another. A step takes one second, the start-up ten."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def start(self, attempt: int, resumed_from: int | None = None, num_devices: int = 2) -> None:
        self.attempt, self.step, self.seconds = attempt, resumed_from or 0, 9.0
        self._write("start", device="cpu", num_devices=num_devices, resumed_from=resumed_from, precision="fp32")

    def train(self, num_steps: int) -> None:
        self.step += num_steps
        self.seconds += num_steps - 1
        self._write("train", loss=2.0, tokens_seen=self.step * 100)

    def evaluate(self, point: str = "interval", loss: float = 1.5) -> None:
        figures = {"loss": loss, "perplexity": 2.718**loss, "bits_per_byte": loss / 0.693}
        self._write("evaluation", point=point, **figures, num_tokens=1000, precision="fp32")

    def checkpoint(self) -> None:
        self._write("checkpoint", path=f"step_{self.step:08}")

    def anomaly(self, **values: Any) -> None:
        found = {"kind": "spike", "value": 9.5, "threshold": 6.0, "action": "skip", "first_step": 7, "num_steps": 1}
        self._write("anomaly", **found | values)

    def end(self) -> None:
        self._write("end")

    def _write(self, event: str, **values: Any) -> None:
        self.seconds += 1
        head = {"event": event, "attempt": self.attempt, "step": self.step, "seconds": self.seconds}
        self.records.append(head | values)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Any:
    with Ledger.open(path) as ledger:
        ledger.record_run(RUN, [BASE, GROWN])
        yield ledger


def rows(ledger: Ledger, table: str) -> list[dict[str, Any]]:
    with sqlite3.connect(ledger.path) as connection:
        connection.row_factory = sqlite3.Row
        found = [dict(row) for row in connection.execute(f"SELECT * FROM {table} ORDER BY rowid")]
    written = ("entry", "sha256", "recorded_at")  # when and in which order
    return [{name: value for name, value in row.items() if name not in written} for row in found]


def extents(ledger: Ledger) -> list[tuple[int, int, int, str]]:
    return [(r["attempt"], r["first_step"], r["last_step"], r["closed_by"]) for r in rows(ledger, "work")]


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
    assert cost.kept == Cost(40, 4000, Flops(24e6, 8e6, 4e6), 6e6, 54.0, 108.0)
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


def killed_once(*, resumed_from: int | None) -> Metrics:
    """20 steps and a checkpoint, then 7 steps and a kill, then on to step 40."""
    metrics = Metrics()
    metrics.start(1)
    metrics.train(20)
    metrics.checkpoint()
    metrics.train(5)
    metrics.evaluate(loss=1.9)
    metrics.train(2)
    metrics.start(2, resumed_from=resumed_from)
    metrics.train(40 - (resumed_from or 0))
    metrics.evaluate("final")
    metrics.end()
    return metrics


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


def test_resuming_from_within_a_row_splits_it_by_steps(ledger: Ledger) -> None:
    ledger.books("0-small").sync(killed_once(resumed_from=15).records)  # the checkpoint at 20 was found broken
    cost = ledger.stage_cost("0-small")
    assert (cost.kept.steps, cost.replayed.steps) == (40, 5 + 7)
    assert cost.replayed.wall_seconds == pytest.approx(31 * 5 / 20 + 8)


def test_a_restart_from_the_beginning_replays_everything(ledger: Ledger) -> None:
    ledger.books("0-small").sync(killed_once(resumed_from=None).records)
    cost = ledger.stage_cost("0-small")
    assert (cost.kept.steps, cost.replayed.steps) == (40, 27)


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
    assert ledger.stage_cost("0-small").replayed == Cost(device_seconds=20.0, wall_seconds=10.0)


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


@settings(max_examples=40)
@given(history=histories(), data=st.data())
def test_any_history_of_kills_adds_up_and_any_interleaving_gives_the_same_rows(
    history: tuple[list[dict[str, Any]], int], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    records, trained = history
    stage = replace(BASE, num_steps=12, train_tokens=1200)
    directory = tmp_path_factory.mktemp("history")
    with Ledger.open(directory / "once.db") as once, Ledger.open(directory / "often.db") as often:
        for ledger in (once, often):
            ledger.record_run(RUN, [stage])
        once.books(stage.name).sync(records)
        for length in sorted(data.draw(st.lists(st.integers(0, len(records)), max_size=6))):
            dies = length < len(records) and length and records[length]["event"] == "start"
            often.books(stage.name).sync(records[:length], attempt_over=bool(dies and data.draw(st.booleans())))
        for _ in range(2):
            often.books(stage.name).sync(records)
        for table in ("work", "evaluation", "attempt"):
            key = {"work": "num_records", "evaluation": "step", "attempt": "attempt"}[table]
            ordered = [sorted(rows(led, table), key=lambda r: (r["attempt"], r[key])) for led in (once, often)]
            assert ordered[0] == ordered[1]

        cost = once.stage_cost(stage.name)
        assert cost.kept.steps == 12
        assert cost.spent.steps == trained
        assert cost.kept.tokens + cost.replayed.tokens == 100 * trained
        assert cost.spent.flops.total == pytest.approx(trained * 9e5)
        last_lines = {record["attempt"]: record["seconds"] for record in records}
        assert cost.spent.wall_seconds == pytest.approx(sum(last_lines.values()))
        final = once.evaluations(stage.name)[-1]
        assert (final.point, final.flops) == ("final", pytest.approx(trained * 9e5))
        assert once.finished(stage.name)


@settings(max_examples=40)
@given(history=histories(), data=st.data())
def test_incremental_books_give_the_same_rows_also_after_kills(
    history: tuple[list[dict[str, Any]], int], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    records, _ = history
    stage = replace(BASE, num_steps=12, train_tokens=1200)
    directory = tmp_path_factory.mktemp("history")
    with Ledger.open(directory / "once.db") as once, Ledger.open(directory / "followed.db") as followed:
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
        for table in ("work", "evaluation", "attempt"):
            key = {"work": "num_records", "evaluation": "step", "attempt": "attempt"}[table]
            ordered = [sorted(rows(led, table), key=lambda r: (r["attempt"], r[key])) for led in (once, followed)]
            assert ordered[0] == ordered[1]


def test_records_of_a_failed_sync_are_booked_by_the_next_one(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    records = killed_once(resumed_from=20).records
    books = ledger.books("0-small")
    books.sync(records[:3])
    before = {table: rows(ledger, table) for table in TABLES}
    append = ledger._file.append

    def full(table: str, *rest: Any, **named: Any) -> None:
        append(table, *rest, **named)
        if table == "work":
            raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(ledger._file, "append", full)
        with pytest.raises(OSError, match="full"):
            books.sync(records[3:])
    assert {table: rows(ledger, table) for table in TABLES} == before
    books.sync(attempt_over=True)
    assert extents(ledger) == [(1, 0, 20, "checkpoint"), (1, 20, 27, "interruption"), (2, 20, 40, "end")]
    assert [evaluation.point for evaluation in ledger.evaluations("0-small")] == ["final"]


def test_work_and_evaluations_are_append_only(ledger: Ledger) -> None:
    metrics = killed_once(resumed_from=20)
    metrics.anomaly()
    ledger.books("0-small").sync(metrics.records)
    connection = sqlite3.connect(ledger.path)
    for table in TABLES:
        for statement in (f"DELETE FROM {table}", f"UPDATE {table} SET rowid = rowid + 10"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                connection.execute(statement)
    connection.close()


def test_recording_again_changes_nothing_and_other_values_are_rejected(ledger: Ledger) -> None:
    before = {table: rows(ledger, table) for table in ("run", "stage")}
    ledger.record_run(replace(RUN, schedule="../quickstart.yaml"), [BASE, GROWN])
    assert {table: rows(ledger, table) for table in ("run", "stage")} == before
    assert ledger.stages() == [BASE, GROWN]
    with pytest.raises(LedgerError, match="recorded with seed 1, now it is 2"):
        ledger.record_run(replace(RUN, seed=2), [BASE, GROWN])
    with pytest.raises(LedgerError, match="stage 1-large was recorded with num_steps 40"):
        ledger.record_run(RUN, [BASE, replace(GROWN, num_steps=41)])
    with pytest.raises(LedgerError, match="stage 0-small, stage 1-large; now there are run, stage 0-small"):
        ledger.record_run(RUN, [BASE])
    ledger.record_run(RUN, [BASE, GROWN])


def test_a_failed_sync_leaves_nothing_half_done(ledger: Ledger) -> None:
    metrics = killed_once(resumed_from=20)
    unfit = [r | {"precision": None} if r.get("point") == "final" else r for r in metrics.records]
    with pytest.raises(LedgerError, match="NOT NULL"):
        ledger.books("0-small").sync(unfit)
    assert extents(ledger) == []
    with pytest.raises(LedgerError, match="no stage '2-huge'"):
        ledger.books("2-huge").sync(metrics.records)


def test_a_nan_loss_is_stored_as_null(ledger: Ledger) -> None:
    metrics = Metrics()
    metrics.start(1)
    metrics.evaluate(loss=float("nan"))
    ledger.books("0-small").sync(metrics.records)
    assert ledger.evaluations("0-small")[0].loss is None


def test_reading_writes_nothing(ledger: Ledger, path: Path) -> None:
    ledger.close()
    before = path.read_bytes()
    with Ledger.open(path, read_only=True) as reader:
        assert reader.run() == RUN
        with pytest.raises(LedgerError, match="readonly"):
            reader.books("0-small").sync(killed_once(resumed_from=20).records)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["ledger.db"]
    with pytest.raises(LedgerError, match="no ledger here"):
        Ledger.open(path.with_name("other.db"), read_only=True)
    assert not path.with_name("other.db").exists()


def test_a_file_that_is_not_a_ledger_is_rejected(path: Path, tmp_path: Path) -> None:
    path.write_bytes(b"not a database, not at all" * 100)
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE work (x)")
    (tmp_path / "empty.db").touch()
    for name, read_only in (("ledger.db", 1), ("ledger.db", 0), ("other.db", 0), ("empty.db", 1), ("no/l.db", 0)):
        with pytest.raises(LedgerError, match=name):
            Ledger.open(tmp_path / name, read_only=bool(read_only))
    assert path.read_bytes().startswith(b"not a database")


def test_a_ledger_cut_short_is_an_error_that_names_it(ledger: Ledger, path: Path) -> None:
    ledger.books("0-small").sync(killed_once(resumed_from=20).records)
    ledger.close()
    path.write_bytes(path.read_bytes()[:9000])
    with pytest.raises(LedgerError, match=r"ledger\.db"), Ledger.open(path, read_only=True) as reader:
        reader.stage_cost("0-small")


def test_a_writer_killed_while_it_commits_leaves_a_ledger_that_the_next_one_repairs(ledger: Ledger, path: Path) -> None:
    ledger.books("0-small").sync(killed_once(resumed_from=20).records)
    before = ledger.stage_cost("0-small")
    ledger.close()
    code = f"""import os, sqlite3
connection = sqlite3.connect({str(path)!r}, isolation_level=None)
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN IMMEDIATE")
for step in range(3000):
    values = (step + 99, "-", "0-small", 1, step + 99, "interval", 1, 1, 1, 1, "fp32")
    connection.execute("INSERT INTO evaluation VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
os.kill(os.getpid(), 9)"""
    subprocess.run([sys.executable, "-c", code], check=False)
    assert path.with_name("ledger.db-journal").exists()
    with pytest.raises(LedgerError, match="died while writing"):
        Ledger.open(path, read_only=True)
    with Ledger.open(path) as repaired:
        assert repaired.stage_cost("0-small") == before
        assert len(repaired.evaluations("0-small")) == 1


def test_another_format_is_rejected_with_the_fix(ledger: Ledger, path: Path) -> None:
    ledger.close()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE something_new (x)")
    connection.execute("PRAGMA user_version = 3")
    connection.close()
    with pytest.raises(LedgerError, match=r"format 3 by another version of growctl.*reads format 1"):
        Ledger.open(path)


def without_triggers(path: Path, statement: str) -> None:
    """Changes a ledger as a tamperer would."""
    connection = sqlite3.connect(path)
    triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    connection.execute(statement)
    for _, sql in triggers:
        connection.execute(sql)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE work SET wall_seconds = 1 WHERE closed_by = 'end'", "of work, does not match its hash"),
        ("UPDATE stage SET num_parameters = num_parameters + 1 WHERE position = 0", "row 2, of stage, does not"),
        ("DELETE FROM work WHERE closed_by = 'checkpoint'", "is missing"),
        ("DELETE FROM run", "row 1 of 9 is missing"),
        ("UPDATE evaluation SET entry = entry + 1", "is missing"),
        ("INSERT INTO attempt VALUES (11, 'x', '0-small', 9, 0, 0)", "row 11, of attempt, does not match its hash"),
        ("DROP TRIGGER work_keeps_on_update", "its tables are not those"),
        ("CREATE TABLE other (x)", "its tables are not those"),
        ("PRAGMA user_version = 9", "its tables are not those"),
        ("PRAGMA application_id = 9", "not a growctl ledger"),
    ],
)
def test_a_change_to_a_written_row_is_detected(ledger: Ledger, path: Path, statement: str, said: str) -> None:
    ledger.books("0-small").sync(killed_once(resumed_from=20).records)
    ledger.close()
    if "TRIGGER" in statement:
        with sqlite3.connect(path) as connection:
            connection.execute(statement)
    else:
        without_triggers(path, statement)
    for read_only in (True, False):
        with pytest.raises(BrokenLedger, match=f"{said}.*; `growctl run` sets it aside and rebuilds it"):
            Ledger.open(path, read_only=read_only)


def test_a_broken_ledger_is_set_aside_with_its_companion_files(ledger: Ledger, path: Path) -> None:
    ledger.close()
    path.with_name("ledger.db-journal").write_text("j")
    assert move_aside(path).name == "broken-ledger.db"
    path.write_text("again")
    assert move_aside(path).name == "broken-ledger.db-2"
    names = ["broken-ledger.db", "broken-ledger.db-2", "broken-ledger.db-journal"]
    assert sorted(p.name for p in path.parent.iterdir()) == names


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
        Anomaly(1, 7, 18.0, "spike", 9.5, 6.0, "skip", 7, 1),
        Anomaly(1, 7, 19.0, "non_finite", None, None, "stop", None, None),
    ]
    assert ledger.anomalies("1-large") == []
    ledger.close()
    with Ledger.open(ledger.path):
        """Rows with NaN have a valid hash too."""


def test_an_attempt_whose_start_is_lost_is_booked_like_the_one_before(ledger: Ledger) -> None:
    records = killed_once(resumed_from=20).records
    ledger.books("0-small").sync([r for r in records if (r["event"], r["attempt"]) != ("start", 2)])
    assert extents(ledger) == [(1, 0, 20, "checkpoint"), (1, 20, 27, "interruption"), (2, 20, 40, "end")]
    assert [row["num_devices"] for row in rows(ledger, "work")] == [2, 2, 2]


@settings(max_examples=30)
@given(history=histories(), data=st.data())
def test_rows_do_not_depend_on_the_pieces_that_are_booked_even_if_starts_are_lost(
    history: tuple[list[dict[str, Any]], int], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lost = data.draw(st.sets(st.integers(1, 7)))
    records = [record for record in history[0] if record["event"] != "start" or record["attempt"] not in lost]
    landmarks = [record for record in records if record["event"] in LANDMARKS]
    directory = tmp_path_factory.mktemp("pieces")
    with Ledger.open(directory / "once.db") as once, Ledger.open(directory / "pieces.db") as pieces:
        for ledger in (once, pieces):
            ledger.record_run(RUN, [BASE])
        once.books(BASE.name, landmarks).sync(records, attempt_over=True)
        books, cuts = (
            pieces.books(BASE.name, landmarks),
            data.draw(st.lists(st.integers(0, len(records)), min_size=1, max_size=6)),
        )
        for begin, end in pairwise([0, *sorted(cuts), len(records)]):
            books.sync(records[begin:end])
        books.sync(attempt_over=True)
        for table in ("work", "evaluation", "attempt"):
            assert by_attempt(rows(pieces, table)) == by_attempt(rows(once, table))


def by_attempt(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["attempt"])


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
    stage = replace(BASE, num_steps=12, train_tokens=1200)
    path = tmp_path_factory.mktemp("history") / "ledger.db"
    with Ledger.open(path) as ledger:
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
    with Ledger.open(path) as ledger:
        assert ledger.stage_cost(stage.name) == cost


def test_importing_the_ledger_and_the_report_imports_no_heavy_library() -> None:
    heavy = {"torch", "deepspeed", "matplotlib", "rich"}
    code = f"import sys, growctl.ledger.ledger, growctl.report.compare; print({heavy!r} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_full_disk_is_not_reported_as_a_broken_ledger(path: Path) -> None:
    with Ledger.open(path) as ledger:
        [(pages,)] = ledger._query("PRAGMA page_count")
        ledger._query(f"PRAGMA max_page_count = {pages}")
        many = [replace(BASE, name=f"{'s' * 200}{number}") for number in range(100)]
        with pytest.raises(OSError, match="database or disk is full") as full:
            ledger.record_run(RUN, many)
    assert full.value.errno == errno.ENOSPC
