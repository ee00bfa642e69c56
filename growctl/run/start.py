"""The `initial/` of a stage: made from the checkpoint that the run starts from, or from the stage before.

Once the first stage has its `initial/`, the run no longer needs the checkpoint that it starts from.
"""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from growctl.ladder.stage_plans import StagePlan
from growctl.ledger.entries import BaseEntry
from growctl.run.requests import RunFailed
from growctl.run.resume import convert
from growctl.run.screen import Screen
from growctl.runs.directory import RunError
from growctl.schedule.blocks import Schedule
from growctl.schedule.start_block import BaseBlock
from model.policy import EXACT_GROWTH
from stages.checkpoint.directory import link_checkpoint, whole_or_set_aside
from stages.checkpoint.manifest import history_of, manifest_hash, read_manifest, verify_checkpoint
from stages.checkpoint.pickles import check_origin
from stages.data.dataset import DatasetManifest
from stages.images.either import AnyManifest
from stages.stage_dir import StagePaths

_ATTENDS = {True: "within documents only", False: "across documents"}


class Start:
    """The checkpoint that a run starts from."""

    def __init__(self, schedule: Schedule, base: BaseBlock, runs_dir: Path) -> None:
        self.schedule = schedule
        self.base = base
        self.runs_dir = runs_dir
        self.path = Path(base.path)

    @classmethod
    def of(cls, schedule: Schedule, runs_dir: Path) -> "Start | None":
        """The start checkpoint of `schedule`; None if it starts from a new model."""
        return cls(schedule, schedule.base, runs_dir) if schedule.base else None

    def check(self) -> None:
        """Checks the hashes of all files of the checkpoint, and that it is the one that the run was requested with.

        Raises RunError or CheckpointError if not, or for an engine checkpoint outside the runs directory.
        """
        self._check_unchanged()
        manifest = verify_checkpoint(self.path)
        if manifest.kind == "engine":
            check_origin(self.path, self.runs_dir)

    def made_initial(self, plan: StagePlan, stage: StagePaths, dataset: AnyManifest, screen: Screen) -> Path:
        """The first stage's `initial/`, written if it is missing. Raises RunFailed for one of another checkpoint."""
        if not whole_or_set_aside(stage.initial, screen.message):
            self.tell(dataset, screen.message)
            self._write_initial(plan, stage, screen)
        manifest = read_manifest(stage.initial)
        parents = (manifest_hash(stage.initial), manifest.lineage.parent)
        if self.base.manifest not in parents and self.base.kind != "engine":
            raise RunFailed(f"{stage.initial} was not made from {self.path}; move it away and run again")
        return stage.initial

    def _write_initial(self, plan: StagePlan, stage: StagePaths, screen: Screen) -> None:
        self._check_unchanged()
        source, own = self.path, stage.converted_start
        shutil.rmtree(own, ignore_errors=True)
        if self.base.kind == "engine":
            source = convert(self.path, own, stage.log)
        _grow_or_link(self.schedule, plan, source, stage.initial, screen)
        shutil.rmtree(own, ignore_errors=True)

    def position(self, dataset: AnyManifest) -> tuple[int, str]:
        """The position in the data (growctl/ladder/stage_plans.py) at which the run begins, and why, for people.

        It goes on where the checkpoint stopped if the order of the data is the same.
        """
        base, windows = self.base, self.schedule.longest_context
        both = {
            "data": (base.dataset_fingerprint, dataset.fingerprint),
            "seed": (base.seed, self.schedule.seed),
            "context": (base.window_length or windows, windows),
            "data.packing": (base.packing, self.schedule.data.packing),
        }
        if other := [what for what, (was, now) in both.items() if was != now]:
            return 0, f"from sample 0, because the start checkpoint was trained with another {other[0]}"
        place = f"from sample {base.samples_seen:,}, where the start checkpoint stopped"
        return base.samples_seen * (base.sequence_length or windows), place

    def entry(self, dataset: AnyManifest) -> BaseEntry:
        """The checkpoint as the ledger records it; with its loss if that was measured on the same text."""
        base = self.base
        same_text = base.dataset_fingerprint == dataset.fingerprint
        same_windows = same_text and base.evaluation_length == self.schedule.evaluation_length
        return BaseEntry(
            path=base.path,
            manifest=base.manifest,
            run=base.run,
            num_parameters=base.num_parameters,
            flops=self.schedule.base_flops,
            tokens=base.tokens if same_text and not base.read_others else None,
            recipe=base.recipe if base.seed == self.schedule.seed else None,
            validation_loss=base.loss if same_windows else None,
            validation_tokens=base.loss_tokens if same_windows else None,
        )

    def tell(self, dataset: AnyManifest, message: Callable[[str], None]) -> None:
        """Says what the run starts from, and where in the data."""
        trained = f", trained in run {self.base.run}" if self.base.run else ""
        message(f"starting from {self.base.path}{trained}; data {self.position(dataset)[1]}")
        if isinstance(dataset, DatasetManifest):
            self._tell_of_text(dataset, message)

    def _tell_of_text(self, dataset: DatasetManifest, message: Callable[[str], None]) -> None:
        if self.base.tokenizer_sha256 not in (None, dataset.tokenizer_sha256):
            message(
                "warning: the start checkpoint was trained with another tokenizer than that of the dataset, so its "
                "embedding means other tokens; set data.tokenizer to the checkpoint's tokenizer"
            )
        if self.base.begin_of_text != dataset.spec.begin_of_text:
            was, now = (token or "nothing" for token in (self.base.begin_of_text, dataset.spec.begin_of_text))
            message(
                f"warning: each text that the start checkpoint knows begins with {was}, and those of the dataset with "
                f"{now}; to keep it, set data.begin_of_text={self.base.begin_of_text or 'null'}"
            )
        masked, masks = self.base.model.document_end_id is not None, self.schedule.data.document_mask
        if masked != masks:
            message(
                f"warning: the start checkpoint attends {_ATTENDS[masked]}, and this run makes it attend "
                f"{_ATTENDS[masks]}, which changes its loss at once; to keep it, set data.document_mask="
                f"{str(masked).lower()}"
            )

    def _check_unchanged(self) -> None:
        with suppress(FileNotFoundError, NotADirectoryError):
            if manifest_hash(self.path) == self.base.manifest:
                return
        raise RunError(
            f"start: {self.path} is gone or has changed since this run was started, and the run has not copied it yet; "
            "restore it, or start a run under another --name"
        )


def made_from_previous(schedule: Schedule, plan: StagePlan, previous: Path, initial: Path, screen: Screen) -> Path:
    """The `initial/` of a stage, written if it is missing: the checkpoint `previous`, grown if the stage grows.

    Raises RunFailed for one of another checkpoint.
    """
    if not whole_or_set_aside(initial, screen.message):
        _grow_or_link(schedule, plan, previous, initial, screen)
    histories = [history_of(read_manifest(checkpoint)) for checkpoint in (initial, previous)]
    own = histories[0][-2 if plan.is_grown else -1]
    if own.hash != histories[1][-1].hash:
        raise RunFailed(f"{initial} was not made from {previous}; move it away and run again")
    return initial


def _grow_or_link(schedule: Schedule, plan: StagePlan, source: Path, output: Path, screen: Screen) -> None:
    """Writes `output`, completely or not at all: the checkpoint `source`, grown to stage `plan` if that grows."""
    if not plan.is_grown:
        link_checkpoint(source, output)
        return
    from stages.grow.expand import expand

    screen.growing(plan)
    expand(source, output, **plan.growth._asdict(), policy=schedule.growth.policy(), seed=schedule.seed)


def growth_message(plan: StagePlan, stage: StagePaths, before: float | None, after: float) -> str | None:
    """A message if a growth moved the validation loss: a warning if its policy preserves the function.

    `before` and `after` are in nats; None if the loss before is not known.
    """
    if before is None or abs(after - before) <= EXACT_GROWTH:
        return None
    moved = f"growing to {plan.name} moved the validation loss by {after - before:+.2e} nats, from {before:.6f}"
    growth = read_manifest(stage.initial).lineage.growth
    if growth is None or not growth.preserves:
        return moved
    return (
        f"warning: {moved}; it should move by at most {EXACT_GROWTH:g}. Please report this and attach {stage.directory}"
    )
