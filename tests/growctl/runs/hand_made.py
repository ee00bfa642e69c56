"""Run directories that are made by hand, in any state, and how `growctl status` sees them."""

import fcntl
import io
import json
import os
from pathlib import Path
from typing import Any, Literal

import yaml
from rich.console import Console

from growctl.ledger.entries import RunEntry, StageEntry
from growctl.ledger.ledger import Ledger
from growctl.runs.status import RunStatus, StatusDocument, find_status
from growctl.runs.status_sections import status_sections
from growctl.text.terminal import print_sections
from model.flops import Flops
from model.shapes import ModelConfig
from stages.checkpoint.files import FileEntry, write_file
from stages.checkpoint.lineage import Lineage
from stages.checkpoint.manifest import Manifest
from stages.checkpoint.sealed import seal
from stages.metrics import read_metrics
from stages.process.holder import Holder
from tests.growctl.runs import SCHEDULE
from tests.stages.checkpoints import small_config
from tests.stages.test_metrics import EVALUATION, START, TRAIN, with_crc

LAUNCHED = "[2026-01-02 03:04:05,678] [INFO] [launch.py:152:main] WORLD INFO DICT: {'localhost': ['0']}\n"
KILLED = (
    "[launch.py:259:sigkill_handler] ['python', '-m', 'stages.train.worker', 'spec.json'] exits with return code = "
)
ONE_STAGE = "".join(line for line in SCHEDULE.splitlines(keepends=True) if "name: small" not in line)
LONG_AGO = 1_700_000_000.0


def manifest_of(checkpoint: str, step: int, model: ModelConfig | None = None, **files: FileEntry) -> Manifest:
    """The manifest of a checkpoint of that name."""
    kind: Literal["parameters", "engine"] = "parameters" if checkpoint in ("final", "initial") else "engine"
    unknown: dict[str, Any] = {"samples_seen": 0, "dataset_fingerprint": None, "tokenizer_sha256": None}
    model, lineage = model or small_config(), Lineage(operation="train")
    return Manifest(kind=kind, model=model, step=step, group_steps={}, seed=3, files=files, lineage=lineage, **unknown)


class HandMade:
    """A run directory like a runner's, made by hand: quickly, and in any state."""

    def __init__(
        self, runs_dir: Path, name: str = "tiny", text: str = SCHEDULE, control: str | None = None, ladder_id: str = ""
    ) -> None:
        self.name, self.directory = name, runs_dir / name
        self.directory.mkdir(parents=True)
        (self.directory / "schedule.yaml").write_text(f"name: {name}\n{text}")
        (self.directory / ".lock").write_text(Holder.me().model_dump_json())
        ladder = name.partition("-control-")[0]
        of_control = (control, ladder if control else None)
        entry = RunEntry(name, "tiny.yaml", *of_control, 3, "data", "f00d", ladder_id=ladder_id or None)
        steps = {stage["name"]: stage["train_steps"] for stage in yaml.safe_load(text)["stages"]}
        stages = [StageEntry(*(key, 10, 1, 1, num, 256, Flops(1.0, 1.0, 1.0), 1.0)) for key, num in steps.items()]
        with Ledger(self.directory / "ledger.db") as ledger:
            ledger.record_run(entry, stages)

    def stage(self, stage: str) -> Path:
        return self.directory / "stages" / stage

    def says(self, stage: str, *records: tuple[str, int, dict[str, Any]], attempt: int = 1) -> None:
        """Writes old lines of metrics.jsonl, and the old log of a launcher that vanished."""
        folder = self.stage(stage)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "metrics.jsonl").open("ab") as file:
            for event, step, values in records:
                record = {"event": event, "attempt": attempt, "step": step, "seconds": 1.0} | values
                file.write(with_crc(json.dumps(record).encode()))
        (folder / "log.txt").write_text(LAUNCHED)
        for name in ("metrics.jsonl", "log.txt"):
            os.utime(folder / name, (LONG_AGO, LONG_AGO))

    def trains(self, stage: str, step: int, attempt: int = 1, resumed_from: int | None = None) -> None:
        """Writes an attempt that reached `step`."""
        start = ("start", resumed_from or 0, START | {"resumed_from": resumed_from})
        train = TRAIN | {"loss": 3.25, "tokens_per_second": 512.0}
        self.says(stage, start, ("train", step, train), attempt=attempt)

    def saves(self, stage: str, checkpoint: str, step: int) -> None:
        manifest = seal(manifest_of(checkpoint, step))
        write_file(self.stage(stage) / checkpoint / "manifest.json", manifest.model_dump_json().encode())

    def finishes(self, stage: str, step: int) -> None:
        self.trains(stage, step)
        self.says(stage, ("evaluation", step, EVALUATION), ("end", step, {}))
        self.saves(stage, "final", step)

    def books(self, stage: str) -> None:
        """Books a stage's metrics.jsonl into the ledger."""
        records = read_metrics(self.stage(stage) / "metrics.jsonl")
        with Ledger(self.directory / "ledger.db") as ledger:
            ledger.books(stage.partition("-")[2]).sync(records, attempt_over=True)

    def hold(self) -> Any:
        """Holds the run's lock like a runner, until closed."""
        lock = (self.directory / ".lock").open("r")
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.utime(self.directory / ".lock", (LONG_AGO - 100, LONG_AGO - 100))
        return lock


def only(runs_dir: Path) -> RunStatus:
    [status] = find_status(runs_dir)
    return status


def printed(runs_dir: Path, *names: str) -> str:
    """What status prints, with most paragraphs on one line."""
    document = StatusDocument(runs_dir, (), tuple(find_status(runs_dir, names)))
    out = io.StringIO()
    print_sections(status_sections(document, details=bool(names)), Console(file=out, width=200, highlight=False))
    return out.getvalue()


def stages_of(status: RunStatus) -> list[str]:
    return [f"{stage.name} {stage.state} {stage.step}/{stage.num_steps}" for stage in status.stages]
