"""Reads the progress of one stage from its directory, which may be in use or damaged.

Imports no torch.
"""

import math
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from growctl.ladder.stage_plans import StagePlan
from growctl.launch.start_ranks import STARTED
from growctl.launch.worker_logs import failure_reason, signal_reason
from stages.checkpoint.manifest import CheckpointError, Manifest, verify_checkpoint
from stages.metrics import Record, parse_line
from stages.stage_dir import MANIFEST_NAME, StagePaths

StageState = Literal["done", "training", "starting", "growing", "stopped", "failed", "waiting"]

LOG_BYTES = 4 * 2**20
"""The number of bytes at the end of a log to search for the reason why an attempt ended."""

QUIET_CODES = (1, 143, 130, -15, -2)
"""Exit codes of workers that were stopped or whose runner died. A worker that fails exits with 1 and logs why."""

_EXIT_CODE = re.compile(r"exits with return code = (-?\d+)")
_SAID = re.compile(r"^(?:\S+: )?(?:growctl: |Traceback \(most recent call last\))", re.MULTILINE)
"""A worker's own error message. pdsh puts the host's name in front of it."""


@dataclass(frozen=True)
class StageStatus:
    """The status of one stage, as far as it can be read from its files."""

    name: str
    state: StageState
    directory: str | None = None
    """None before it exists."""
    num_parameters: int | None = None
    step: int = 0
    """Optimizer steps done, from the last record of its workers."""
    num_steps: int | None = None
    """The budget in steps; for a finished stage, the steps that it took."""
    training_loss: float | None = None
    """Training loss in nats per token, from the last `train` record."""
    validation_loss: float | None = None
    """Nats per token, from the last evaluation, at the context of the ladder's last stage."""
    own_context_loss: float | None = None
    """The same at the stage's own context; None if that is the same context."""
    tokens_per_second: float | None = None
    """Data tokens per wall second over all devices, from the last `train` record."""
    seconds_left: float | None = None
    """Seconds until the stage ends, at its last speed; only while it trains."""
    checkpoint: str | None = None
    """The newest complete checkpoint: `final`, `step_...` or `initial`."""
    checkpoint_at: str | None = None
    """When that checkpoint was written: ISO 8601, in UTC."""
    attempts: int = 0
    """How often the stage was started or resumed."""
    device: str | None = None
    """The devices that its last attempt trained on."""
    last_record_at: str | None = None
    """When its workers last wrote a line of metrics.jsonl: ISO 8601, in UTC."""
    reason: str | None = None
    """Why the stage failed."""
    branch_of: str | None = None
    """The stage that a release branches from; None for a stage of the ladder."""
    reused_steps: dict[str, int] = field(default_factory=dict)
    """Steps taken over from other runs: {the run that paid for them: steps}."""


def read_stage(
    name: str, paths: StagePaths, plan: StagePlan | None, *, reached: bool, held_since: float | None, notes: list[str]
) -> StageStatus:
    """The status of the stage or release in `paths`; adds a note for every file that cannot be read.

    `plan`: None if the schedule cannot be read. `reached`: the stages before it are done. `held_since`: when the
    process that works on this stage took the lock, in seconds since 1970; None if there is none.
    """
    final = _whole(paths.final, notes)
    metrics = _read_metrics(paths.metrics, notes)
    records = {record["event"]: record for record in reversed(metrics)}
    start, train, evaluation = (records.get(event, {}) for event in ("start", "train", "evaluation"))
    newest = metrics[0] if metrics else {}
    last_word = modified(paths.metrics)
    state, reason = _state(paths, final, last_word, reached, held_since, notes)
    if state == "starting" and plan and plan.has_initial and not plan.branch_of and not paths.initial.is_dir():
        state = "growing"
    step = final.step if final else newest.get("step", 0)
    num_steps = final.step if final else plan.num_steps if plan else None
    speed = _number(train.get("tokens_per_second"))
    left = None
    if state == "training" and plan and num_steps and speed:
        left = max(0, num_steps - step) * plan.tokens_per_step / speed
    checkpoint = paths.final if final else _newest(paths, notes)
    saved = modified(checkpoint / MANIFEST_NAME) if checkpoint else None
    return StageStatus(
        name=name,
        state=state,
        directory=str(paths.directory) if paths.directory.is_dir() else None,
        num_parameters=plan.num_parameters if plan else None,
        step=step,
        num_steps=num_steps,
        training_loss=_number(train.get("loss")),
        validation_loss=_number(evaluation.get("loss")),
        own_context_loss=_number(evaluation.get("own_context_loss")),
        tokens_per_second=speed,
        seconds_left=left,
        checkpoint=checkpoint.name if checkpoint else None,
        checkpoint_at=in_utc(saved),
        attempts=newest.get("attempt", 0),
        device=_device(start),
        last_record_at=in_utc(last_word),
        reason=reason,
        branch_of=name.rpartition("/")[0] or None,
        reused_steps=_reused_steps(metrics, step),
    )


def _state(
    paths: StagePaths,
    final: Manifest | None,
    last_word: float | None,
    reached: bool,
    held_since: float | None,
    notes: list[str],
) -> tuple[StageState, str | None]:
    """The stage's state, and the reason if it failed."""
    if final is not None:
        return "done", None
    if held_since is not None:
        return "starting" if last_word is None or last_word < held_since else "training", None
    if not reached or not paths.directory.is_dir():
        return "waiting", None
    reason = _failure(paths.log, notes)
    return ("failed" if reason else "stopped"), reason


def _read_metrics(path: Path, notes: list[str]) -> list[Record]:
    """The complete records of a stage, newest first; of the `train` records, which are most of a long file, only the
    last."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    except OSError as error:
        notes.append(f"{path} cannot be read: {error.strerror}")
        return []
    found: list[Record] = []
    has_train = False
    for line in reversed(lines):
        if has_train and b'"train"' in line:
            continue
        record = parse_line(line)
        if record is not None:
            found.append(record)
            has_train = has_train or record["event"] == "train"
    return found


def _reused_steps(metrics: Sequence[Record], step: int) -> dict[str, int]:
    """The steps of a stage, of the first `step`, that other runs paid for: {run: steps}."""
    own, found = "", dict[str, int]()
    for segment in payers(metrics[::-1], own):
        steps = int(min(step, segment.last_step)) - segment.first_step
        if segment.paid_by != own and steps > 0:
            found[segment.paid_by] = found.get(segment.paid_by, 0) + steps
    return found


@dataclass(frozen=True)
class Segment:
    """Steps of a stage that one run paid for."""

    first_step: int
    last_step: float
    """Infinite while the run that trains them goes on."""

    paid_by: str


def payers(records: Sequence[Record], run: str) -> list[Segment]:
    """Who paid for which steps of the stage that wrote `records`: `run` itself, or the runs that it reused."""
    segments: list[Segment] = []
    attempt, step = 0, 0
    for record in records:
        if record["event"] not in ("start", "reused"):
            continue
        if record["attempt"] != attempt:
            attempt, step = record["attempt"], record["resumed_from"] or 0
            segments = [
                Segment(s.first_step, min(s.last_step, step), s.paid_by) for s in segments if s.first_step < step
            ]
        last = record["step"] if record["event"] == "reused" else math.inf
        segments.append(Segment(step, last, record["run"] if record["event"] == "reused" else run))
        step = record["step"]
    return segments


def _whole(checkpoint: Path, notes: list[str]) -> Manifest | None:
    """The manifest of a checkpoint whose files exist with the right sizes; else None, with a note."""
    if not checkpoint.is_dir():
        return None
    try:
        return verify_checkpoint(checkpoint, hashes=False)
    except (CheckpointError, OSError) as error:
        if checkpoint.is_dir():  # a running growctl may just have removed it
            notes.append(f"{error}; `growctl run` sets it aside")
        return None


def _newest(paths: StagePaths, notes: list[str]) -> Path | None:
    """The checkpoint that the stage would resume from."""
    candidates = [*paths.named_as_checkpoints(), paths.initial]
    return next((path for path in candidates if _whole(path, notes)), None)


def _failure(log: Path, notes: list[str]) -> str | None:
    """Why the last attempt failed; None if it was stopped or its machine went down."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            offset = file.seek(max(0, size - LOG_BYTES))
            end = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        notes.append(f"{log} cannot be read: {error.strerror}")
        return None
    # The first output of an attempt: from our own launcher, or on other machines from DeepSpeed's.
    begin = max(0, end.rfind(STARTED.encode()), end.rfind(b"WORLD INFO DICT"))
    attempt = end[begin:].decode(errors="replace")
    codes = [code for code in map(int, _EXIT_CODE.findall(attempt)) if code not in QUIET_CODES]
    if not _SAID.search(attempt) and (not codes or "received SIGTERM" in attempt):
        return None
    if not _SAID.search(attempt) and codes[0] < 0:
        return signal_reason(-codes[0])
    return failure_reason(log, offset + begin)


def _device(start: Record) -> str | None:
    if not start:
        return None
    name, num_devices, precision, zero = (
        start.get(key, "?") for key in ("device", "num_devices", "precision", "zero_stage")
    )
    return f"{num_devices} x {name}, {precision}, ZeRO-{zero}"


def _number(value: Any) -> float | None:
    """`value` if it is a finite number, else None: a file may hold anything."""
    is_number = isinstance(value, int | float) and -sys.float_info.max <= value <= sys.float_info.max
    return float(value) if is_number else None


def modified(path: Path) -> float | None:
    """When a file was last written, in seconds since 1970; None if it does not exist."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def in_utc(moment: float | None) -> str | None:
    """A time in ISO 8601 and UTC, to the second; None if it is unknown or beyond the calendar."""
    if moment is None:
        return None
    try:
        return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return None
