"""Small runs with real files, and datasets, for tests of what they occupy and what can be removed."""

import os
import shutil
from pathlib import Path
from typing import Any

from growctl.ladder.stage_plans import plan_stages, worker_spec
from growctl.runs.directory import own_schedule
from model.shapes import ModelConfig
from stages.checkpoint.directory import finish_directory, whole_directory
from stages.checkpoint.files import link_or_copy, list_files, write_file
from stages.data.dataset import dataset_manifest_bytes, read_dataset_manifest
from stages.data.spec import DataSpec
from stages.spec import TrainSpec
from tests.growctl.runs.hand_made import HandMade, manifest_of
from tests.stages.data.test_dataset import write_dataset

WEIGHTS = 10_000
"""Bytes of the one large file of a checkpoint."""

TRUNK_STEP = 43
"""Of the stage `1-large` of HandMade's schedule: 90 steps in all, of which the last 18 decay, after 30 of `0-small`."""


def save(made: HandMade, stage: str, name: str, step: int, model: ModelConfig | None = None) -> Path:
    """A complete checkpoint with files of its own."""
    directory = made.stage(stage) / name
    with whole_directory(directory) as staging:
        write_file(staging / "weights", f"{made.name}/{stage}/{name}|".encode().ljust(WEIGHTS, b"w"))
        finish_directory(directory, manifest_of(name, step, model, **list_files(staging)))
    return directory


def change(path: Path, content: str | None) -> None:
    """Gives a file other content; removes a file or folder without."""
    if content is not None:
        path.write_text(content)
    elif path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def finished_run(runs_dir: Path, name: str = "tiny") -> HandMade:
    """A run of two finished stages, each with two checkpoints inside, one of them the trunk of the second stage."""
    made = HandMade(runs_dir, name)
    (made.directory / ".lock").write_text("")  # its growctl has exited cleanly
    for stage, steps in {"0-small": (20, 30), "1-large": (TRUNK_STEP, 50)}.items():
        for step in steps:
            save(made, stage, f"step_{step:08d}", step)
        save(made, stage, "final", steps[-1])
        (made.stage(stage) / "metrics.jsonl").touch()
        write_file(made.stage(stage) / "spec.json", spec_of(made, int(stage[0])).model_dump_json().encode())
    return made


def spec_of(made: HandMade, index: int) -> TrainSpec:
    """The spec of a stage's worker, as the runner writes it."""
    schedule = own_schedule(made.directory / "schedule.yaml")
    values: dict[str, Any] = {"directory": "", "dataset": "data", "initial": None, "resume": None, "attempt": 1}
    values |= {"samples_seen": 0, "micro_batch_size": 1, "launched_at": 0.0}
    return worker_spec(schedule, plan_stages(schedule)[index], **values)


def linked_copy(directory: Path, target: Path) -> Path:
    """A copy of a checkpoint that shares its files, as a reused checkpoint does."""
    for file in directory.rglob("*"):
        if file.is_file():
            link_or_copy(file, target / file.relative_to(directory))
    return target


def dataset(runs_dir: Path, name: str, spec: DataSpec | None = None) -> Path:
    """A dataset of a few numbers, as if it was made from `spec`."""
    directory = write_dataset(runs_dir / ".datasets" / name, [8], [8])
    manifest = read_dataset_manifest(directory).model_copy(update={"spec": spec or DataSpec(source="elsewhere")})
    write_file(directory / "manifest.json", dataset_manifest_bytes(manifest))
    return directory


def names_below(directory: Path) -> set[str]:
    """The relative paths of the folders below `directory`, hidden ones too, that hold files."""
    return {os.path.relpath(folder, directory) for folder, _, files in os.walk(directory) if files}
