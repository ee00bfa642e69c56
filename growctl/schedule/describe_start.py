"""Finds and describes a start checkpoint, so that a schedule alone is enough to plan and train from it."""

from pathlib import Path

from growctl.find_checkpoint import find_checkpoint, find_in_run, find_named
from growctl.runs_dir import RunPaths, RunsPaths
from growctl.schedule.start_block import BaseBlock, StartBlock
from model.errors import UserError
from stages.checkpoint.lineage import HistoryEntry, TrainingRecord
from stages.checkpoint.manifest import CheckpointError, Manifest, manifest_hash, verify_checkpoint
from stages.spec import MixtureSpan


def describe_start(start: StartBlock, runs_dir: Path) -> BaseBlock:
    """What growctl must know of the checkpoint that `start` names. Reads its manifest and the sizes of its files.

    Raises UserError, starting with the key at fault, if there is no such checkpoint or it is broken.
    """
    try:
        path = _find(start, runs_dir).absolute()
        return _described(path, verify_checkpoint(path, hashes=False))
    except CheckpointError as error:
        key = "checkpoint" if start.checkpoint else "run"
        if start.stage and RunsPaths(runs_dir).run(str(start.run)).exists():
            key = "stage"
        raise UserError(f"start.{key} = {getattr(start, key)!r}: {error}") from error


def _find(start: StartBlock, runs_dir: Path) -> Path:
    """The directory of the checkpoint that `start` names: whatever the commands that take a checkpoint would use.

    A relative `start.checkpoint` is a name: `growctl.schedule.paths` has made paths absolute.
    """
    if start.checkpoint is not None and Path(start.checkpoint).is_absolute():
        return find_checkpoint(start.checkpoint, runs_dir, tell=lambda line: None)
    if start.checkpoint is not None:
        return find_named(start.checkpoint, runs_dir)
    assert start.run is not None
    return find_in_run(start.run, start.stage, runs_dir)


def _described(path: Path, manifest: Manifest) -> BaseBlock:
    lineage = manifest.lineage
    cost = lineage.cost if lineage.cost and lineage.cost.complete else None
    trained = next((entry for entry in reversed(lineage.history) if entry.operation == "train"), None)
    record = (lineage.training if manifest.kind == "parameters" else None) or TrainingRecord()
    policy = lineage.growth.policy if lineage.growth else None
    determined_by = trained.determined_by if trained else {}
    sequence_length = determined_by.get("sequence_length")
    return BaseBlock(
        path=str(path),
        manifest=manifest_hash(path),
        kind=manifest.kind,
        run=_run(path, trained),
        tokens=cost.tokens if cost else None,
        flops=cost.flops.total if cost else None,
        samples_seen=manifest.samples_seen,
        seed=manifest.seed,
        dataset_fingerprint=manifest.dataset_fingerprint,
        tokenizer_sha256=manifest.tokenizer_sha256,
        sequence_length=sequence_length,
        window_length=determined_by.get("window_length", sequence_length),
        evaluation_length=record.evaluations.length if record.evaluations else None,
        packing=determined_by.get("packing", "concatenate"),
        mixture=_mixture(trained) if trained else [],
        loss=record.validation_loss,
        loss_tokens=record.validation_tokens,
        expanded_with=policy.tau if policy else None,
        model_json=manifest.model.model_dump_json(),
    )


def _run(path: Path, trained: HistoryEntry | None) -> str | None:
    """The run and the stage that trained a checkpoint: from its path inside a run, or else from its history."""
    stage = path.parent
    if stage.parent.name == RunPaths(Path()).stages.name and RunPaths(stage.parents[1]).schedule.is_file():
        return f"{stage.parents[1].name}, stage {stage.name.partition('-')[2]}"
    return trained.made_in if trained else None


def _mixture(trained: HistoryEntry) -> list[MixtureSpan]:
    """The weights of a mixture's sources along the training of a checkpoint; empty if it read one text."""
    pieces: list[tuple[int, dict[str, float]]] = trained.determined_by.get("mixture", [])
    return [MixtureSpan(first_window=first, weights=weights) for first, weights in pieces]
