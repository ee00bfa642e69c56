"""Builders for these tests: a worker's spec, and the manifest of a dataset without the dataset."""

from pathlib import Path
from typing import Any

from growctl.ladder.stage_plans import plan_stages, worker_spec
from growctl.schedule.blocks import Schedule
from stages.corpus.location import in_one_spelling
from stages.data.dataset import DatasetManifest, DatasetSplit, dataset_manifest_bytes
from stages.data.spec import DataSpec
from stages.spec import TrainSpec


def spec_of(schedule: Schedule, index: int = 0, **attempt: Any) -> TrainSpec:
    """The worker's spec of a stage, with placeholders for what only an attempt knows."""
    unknown = {"attempt": 1, "samples_seen": 0, "micro_batch_size": 1, "launched_at": 0.0, "directory": ""}
    unknown |= {"dataset": "", "initial": None, "resume": None}
    return worker_spec(schedule, plan_stages(schedule)[index], **unknown | attempt)


def write_dataset(
    folder: Path, spec: DataSpec, training_tokens: int = 10**7, validation: tuple[int, int] = (99, 10**6)
) -> None:
    """A dataset's manifest, as `prepare` writes it. `validation`: documents and tokens of that split."""
    train = DatasetSplit(num_tokens=training_tokens, num_bytes=training_tokens, num_documents=1, files=())
    held_out = DatasetSplit(num_tokens=validation[1], num_bytes=1, num_documents=validation[0], files=())
    manifest = DatasetManifest(
        spec=in_one_spelling(spec),
        vocab_size=300,
        token_bytes=2,
        tokenizer_sha256="",
        end_of_text_id=0,
        splits={"train": train, "validation": held_out},
        fingerprint="",
    )
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_bytes(dataset_manifest_bytes(manifest))
