"""A stage's history is read once, in pieces of any size, at a cost independent of its length."""

import signal
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import stages.metrics
from growctl.ladder.load import load_schedule
from growctl.launch.local import Local
from growctl.launch.machines import Devices
from growctl.ledger import books as ledger_books
from growctl.ledger.entries import RunEntry
from growctl.ledger.ledger import Ledger
from growctl.run import stage_run
from growctl.run.attempt import Outcome, StageHistory
from growctl.run.requests import RunFailed, RunRequest
from growctl.run.runner import stage_entry
from growctl.run.screen import Screen
from growctl.run.signals import Stopped
from growctl.run.stage_run import Execution, StageRun
from stages.metrics import MetricsWriter, read_metrics
from tests.growctl.runs import SCHEDULE, write_schedule
from tests.stages.checkpoints import write_checkpoint
from tests.stages.test_metrics import START, TRAIN, line
from tests.stages.unfinished import left

START_LINE, TRAIN_LINE = line("start"), line("train")
ENDED = Outcome("ended")
LINES = (START_LINE, TRAIN_LINE, line("checkpoint"), line("end", attempt=2), b"damaged\n", b"\n")


@given(lines=st.lists(st.sampled_from(LINES), max_size=12), data=st.data())
def test_reading_a_history_in_pieces_gives_the_same_records_as_reading_it_at_once(lines, data, tmp_path_factory):
    path = tmp_path_factory.mktemp("history") / "metrics.jsonl"
    content = b"".join(lines) + data.draw(st.sampled_from([b"", TRAIN_LINE[:30]]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=6)))
    followed, told = StageHistory(path), []
    for begin, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
        with path.open("ab") as file:
            file.write(content[begin:end])
        told += [record for piece in followed.read() for record in piece]
    at_once = StageHistory(path).read_to_the_end()
    assert told == read_metrics(path)
    assert (followed.last_attempt, followed.begun) == (at_once.last_attempt, at_once.begun)
    assert followed.last_attempt == max((record["attempt"] for record in told), default=0)
    assert followed.begun == (START_LINE in lines)
    assert followed.complaint() == at_once.complaint()


def interrupted(
    function: Callable[..., Any], call: int, counts: Callable[..., bool] = lambda *_: True
) -> Callable[..., Any]:
    """A function whose call number `call` is carried out before a signal arrives."""
    numbers = count(1)

    def called(*arguments: Any, **named: Any) -> Any:
        result = function(*arguments, **named)
        if counts(*arguments) and next(numbers) == call:
            raise Stopped(signal.SIGTERM)
        return result

    return called


def test_a_long_history_is_read_in_pieces_and_no_further_after_an_interruption(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("growctl.run.attempt.PIECE", 2)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(START_LINE + TRAIN_LINE * 4)
    history = StageHistory(path)
    assert [len(piece) for piece in history.read()] == [2, 2, 1]
    assert list(history.read()) == []
    history = StageHistory(path)
    monkeypatch.setattr(stages.metrics, "parse_line", interrupted(stages.metrics.parse_line, 1))
    with pytest.raises(Stopped):
        list(history.read())
    assert history.interrupted
    assert list(history.read()) == []


class Run:
    """A run of two stages with an open ledger, whose workers write what is asked of them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        schedule = load_schedule(str(write_schedule(folder, SCHEDULE)), ["launch.max_restarts=5"])
        machines = Local(Devices(1, "cpu", False))
        self.ends = True
        self.execution = Execution(RunRequest("tiny", schedule, "tiny"), folder, machines, Screen(Console()))
        self.small, self.large = map(self.execution.stage, self.execution.plans)
        self.show()
        self.execution.paths.directory.mkdir()
        monkeypatch.setattr(stage_run, "Attempt", self._attempt)

    def show(self) -> None:
        """Begins to show the run on a new screen."""
        self.execution.screen = Screen(Console())
        self.execution.screen.run_started("tiny", None, self.execution.plans)

    def finish(self, stage: int = 0, num_events: int = 1, num_attempts: int = 1, last: Outcome = ENDED) -> None:
        """Trains a stage; all its attempts but the last crash."""
        self.num_events, self.outcomes = num_events, [Outcome("crashed")] * (num_attempts - 1) + [last]
        StageRun(self.execution, self.execution.plans[stage]).finish()

    def _attempt(self, spec: Any, launch: Any, history: StageHistory, grace: Any, on_records: Any, tell: Any) -> Any:
        """Stands in for growctl.run.attempt.Attempt."""

        def run() -> Outcome:
            stage = Path(spec.directory)
            writer = MetricsWriter(stage / "metrics.jsonl", spec.attempt)
            writer.write("start", 0, 0.0, **START)
            for step in range(1, self.num_events + 1):
                writer.write("train", step, float(step), **TRAIN)
                writer.write("checkpoint", step, float(step), path=f"step_{step:08d}")
                for records in history.read():
                    on_records(records)
            outcome = self.outcomes.pop(0)
            if not self.outcomes and self.ends:
                write_checkpoint(stage / "final")
            return outcome

        return SimpleNamespace(run=run)

    def assert_all_is_booked(self) -> None:
        """The ledger's rows add up to all records in the first stage's metrics.jsonl."""
        records = read_metrics(self.small.metrics)
        total = self.execution.ledger.stage_cost("small").spent
        assert (total.steps, total.wall_seconds) == (records[-1]["step"], records[-1]["seconds"])
        [[booked]] = self.execution.ledger.query("SELECT max(num_records) FROM work")
        assert booked == len(records)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    run = Run(tmp_path, monkeypatch)
    with Ledger(run.execution.paths.ledger) as run.execution.ledger:
        entry = RunEntry("tiny", "tiny", None, None, 3, "dataset", "0" * 64)
        run.execution.ledger.record_run(entry, [stage_entry(plan) for plan in run.execution.plans])
        yield run


def test_every_line_is_parsed_and_booked_once_however_many_events_and_attempts(run: Run, monkeypatch) -> None:
    attempts, events = 3, 40
    monkeypatch.setattr(stage_run, "pause_after", lambda failures: 0.0)
    parsed = Mock(wraps=stages.metrics.parse_line)
    monkeypatch.setattr(stages.metrics, "parse_line", parsed)
    with patch.object(ledger_books._Attempt, "take", autospec=True, side_effect=ledger_books._Attempt.take) as booked:
        run.finish(num_events=events, num_attempts=attempts)
    lines = run.small.metrics.read_bytes().splitlines(keepends=True)
    assert len(lines) == booked.call_count == attempts * (2 * events + 1)
    assert [call.args[-1] for call in parsed.call_args_list] == lines
    assert run.execution.ledger.stage_cost("small").spent.steps == attempts * events
    assert run.execution.screen.ladder.stages["small"].step == events


@pytest.mark.parametrize("kind", ["crashed", "hung"])
def test_a_stage_whose_workers_die_once_more_than_it_may_be_restarted_stops(run: Run, monkeypatch, kind) -> None:
    monkeypatch.setattr(stage_run, "pause_after", lambda failures: 0.0)
    run.ends, run.num_events, run.outcomes = False, 1, [Outcome(kind, "the reason")] * 7
    with pytest.raises(RunFailed, match=rf"{kind}: the reason \(6 times in a row, with no checkpoint in between\)"):
        StageRun(run.execution, run.execution.plans[0]).finish()
    assert len(run.outcomes) == 7 - (1 + run.execution.schedule.launch.max_restarts)


def test_a_checkpoint_in_between_counts_restarts_anew(run: Run, monkeypatch) -> None:
    monkeypatch.setattr(stage_run, "pause_after", lambda failures: 0.0)
    resume = [run.small.step(step) for step in (1, 1, 1, 1, 2, 2, 2, 2)]
    monkeypatch.setattr(stage_run, "checkpoint_to_resume", lambda *_: resume.pop(0))
    run.finish(num_attempts=8)
    assert resume == []


def test_a_stage_that_is_complete_although_its_workers_failed_says_so_in_plain_words(run: Run, capsys) -> None:
    run.finish(last=Outcome("failed", "the loss is nan"))
    assert "stage small is complete, but its workers failed: the loss is nan" in capsys.readouterr().out


def test_a_run_that_resumes_on_another_machine_removes_what_the_first_was_growing(run: Run, monkeypatch) -> None:
    monkeypatch.setattr(stage_run, "growth_message", lambda *_: None)
    run.finish()
    unfinished = left(run.large.initial, host="node-9")
    run.finish(1)
    assert not unfinished.exists()
    assert run.large.initial.is_dir()


def test_a_resumed_run_has_read_the_earlier_records_of_its_stage(run: Run) -> None:
    run.finish(num_events=3)
    run.show()
    run.finish(num_events=3)
    shown = run.execution.screen.ladder.stages["small"]
    assert (shown.step, shown.state, shown.loss) == (3, "done", TRAIN["loss"])
    run.assert_all_is_booked()


@pytest.mark.parametrize(
    ("reading", "call"),
    [*((False, call) for call in range(2, 7)), *((True, call) for call in range(1, 10))],  # COMMIT 1: before attempts
)
def test_a_signal_at_any_moment_books_every_record_once(run: Run, monkeypatch, reading: bool, call: int) -> None:
    if reading:
        monkeypatch.setattr(stages.metrics, "parse_line", interrupted(stages.metrics.parse_line, call))
    else:
        query = interrupted(run.execution.ledger.query, call, lambda sql, **_: sql == "COMMIT")
        monkeypatch.setattr(run.execution.ledger, "query", query)
    with pytest.raises(Stopped):
        run.finish(num_events=4)
    run.assert_all_is_booked()
