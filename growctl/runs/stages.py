"""Reads the progress of one stage from its directory, which may be in use or damaged.

Imports no torch.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import Literal

from growctl.ladder.stage_plans import StagePlan
from growctl.launch.start_ranks import STARTED
from growctl.launch.worker_logs import failure_reason, signal_reason
from stages.checkpoint.manifest import CheckpointError, Manifest, verify_checkpoint
from stages.metrics import Record, parse_line
from stages.stage_dir import MANIFEST_NAME, StagePaths

StageState = Literal["done", "training", "starting", "growing", "stopped", "failed", "waiting"]

_ENDED_BY = re.compile(r"exits with return code = -(\d+)")
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
    tokens_per_second: float | None = None
    """Data tokens per wall second over all devices, from the last `train` record."""
    seconds_left: float | None = None
    """Seconds until the stage ends, at its last speed; only while it trains."""
    checkpoint: str | None = None
    """The newest complete checkpoint: `final`, `step_...` or `initial`."""
    checkpoint_at: str | None = None
    """When that checkpoint was written: ISO 8601, in UTC."""
    last_record_at: str | None = None
    """When its workers last wrote a line of metrics.jsonl: ISO 8601, in UTC."""
    reason: str | None = None
    """Why the stage failed."""
    branch_of: str | None = None
    """The stage that a release branches from; None for a stage of the ladder."""


def read_stage(
    paths: StagePaths, plan: StagePlan, held_since: float | None, notes: list[str], *, reached: bool
) -> StageStatus:
    """The status of the stage or release `plan` in `paths`; adds a note for every file that cannot be read.

    `reached`: the stages before it are done. `held_since`: when the process that works on this stage took the lock, in
    seconds since 1970; None if there is none.
    """
    final = _whole(paths.final, notes)
    records = _newest_records(paths.metrics)
    newest = next(iter(records.values()), {})
    train, evaluation = records.get("train", {}), records.get("evaluation", {})
    last_word = modified(paths.metrics)
    state: StageState = "waiting"
    reason = None
    if final is not None:
        state = "done"
    elif held_since is not None:
        state = "starting" if last_word is None or last_word < held_since else "training"
        if state == "starting" and plan.has_initial and not plan.branch_of and not paths.initial.is_dir():
            state = "growing"
    elif reached and paths.directory.is_dir():
        reason = _failure(paths.log)
        state = "failed" if reason else "stopped"
    step = final.step if final else newest.get("step", 0)
    num_steps = final.step if final else plan.num_steps
    speed, left = train.get("tokens_per_second"), None
    if state == "training" and speed:
        left = max(0, num_steps - step) * plan.batch.tokens / speed
    candidates = [*paths.named_as_checkpoints(), paths.initial]
    checkpoint = paths.final if final else next((path for path in candidates if _whole(path, notes)), None)
    return StageStatus(
        name=plan.name,
        state=state,
        directory=str(paths.directory) if paths.directory.is_dir() else None,
        num_parameters=plan.num_parameters,
        step=step,
        num_steps=num_steps,
        training_loss=train.get("loss"),
        validation_loss=evaluation.get("loss"),
        tokens_per_second=speed,
        seconds_left=left,
        checkpoint=checkpoint.name if checkpoint else None,
        checkpoint_at=in_utc(modified(checkpoint / MANIFEST_NAME)) if checkpoint else None,
        last_record_at=in_utc(last_word),
        reason=reason,
        branch_of=plan.branch_of,
    )


def _newest_records(path: Path) -> dict[str, Record]:
    """The newest complete record of each event, the newest of all first. Parses no other, which is fast."""
    found: dict[str, Record] = {}
    known: tuple[bytes, ...] = ()
    for line in reversed(path.read_bytes().split(b"\n")[:-1] if path.is_file() else []):
        if not line.startswith(known) and (record := parse_line(line)):
            found.setdefault(record["event"], record)
            known += (b'{"event": "%s"' % record["event"].encode(),)
    return found


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


def _failure(log: Path) -> str | None:
    """Why the last attempt failed; None if it was stopped or its machine went down."""
    if not log.is_file():
        return None
    content = log.read_bytes()
    # The first output of an attempt: from our own launcher, or on other machines from DeepSpeed's.
    begin = max(0, content.rfind(STARTED.encode()), content.rfind(b"WORLD INFO DICT"))
    attempt = content[begin:].decode(errors="replace")
    if _SAID.search(attempt):
        return failure_reason(log, begin)
    signals = [int(number) for number in _ENDED_BY.findall(attempt)]
    unasked = [number for number in signals if number not in (SIGTERM, SIGINT)]
    return signal_reason(unasked[0]) if unasked and "received SIGTERM" not in attempt else None


def modified(path: Path) -> float | None:
    """When a file was last written, in seconds since 1970; None if it does not exist."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def in_utc(moment: float | None) -> str | None:
    """A time in ISO 8601 and UTC, to the second; None if it is unknown."""
    if moment is None:
        return None
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")
