"""The only owner of the names in a stage's directory, and of those that a directory has while it is not whole.

Imports nothing of growctl's, and no torch.
"""

import re
from dataclasses import dataclass
from pathlib import Path

MANIFEST_NAME = "manifest.json"
"""What makes a checkpoint or a dataset whole: written last."""

_STEP = "step_"
_CONVERTED = "converted_"
_SET_ASIDE = "broken-"
_INCOMPLETE = ".incomplete"
_REMOVED = ".removed"
_STACK_FILE = re.compile(r"attempt-(\d+)-rank-(\d+)\.txt")


@dataclass(frozen=True)
class StagePaths:
    """Where a stage keeps everything."""

    directory: Path

    # Checkpoints.

    @property
    def initial(self) -> Path:
        """The expanded start of a stage after the first."""
        return self.directory / "initial"

    @property
    def final(self) -> Path:
        """The stage's result."""
        return self.directory / "final"

    def step(self, step: int) -> Path:
        """The engine checkpoint after `step` steps."""
        return self.directory / f"{_STEP}{step:08d}"

    def checkpoints(self) -> dict[int, Path]:
        """The engine checkpoints that are there by their step, oldest first, whether whole or not."""
        found = {path.name.removeprefix(_STEP): path for path in self.directory.glob(f"{_STEP}*") if path.is_dir()}
        return dict(sorted((int(step), path) for step, path in found.items() if step.isdecimal()))

    def named_as_checkpoints(self) -> list[Path]:
        """Everything that has an engine checkpoint's name, newest first; any of it may be broken."""
        return sorted(self.directory.glob(f"{_STEP}*"), reverse=True)

    def conversions(self) -> list[Path]:
        """The engine checkpoints that were converted for other ranks, newest first."""
        return sorted(self.directory.glob(f"{_CONVERTED}*"), reverse=True)

    def leftovers(self) -> list[Path]:
        """What was being written or removed when its process died; `initial/` is never written by workers."""
        steps, conversions = Path(f"{_STEP}*"), Path(f"{_CONVERTED}*")
        unfinished = (removal_directory(steps), *map(staging_directory, (steps, conversions, self.final)))
        return [path for pattern in unfinished for path in self.directory.glob(pattern.name)]

    def unfinished_conversions(self) -> list[Path]:
        """Conversions that a death cut short."""
        return list(self.directory.glob(staging_directory(Path(f"{_CONVERTED}*")).name))

    def manifests(self) -> list[Path]:
        """The manifest files of everything in the directory, in the order of the names."""
        return sorted(self.directory.glob(f"*/{MANIFEST_NAME}"))

    # What runner and workers tell each other, and what they leave for people.

    @property
    def spec(self) -> Path:
        """What the last attempt's workers were told: a TrainSpec."""
        return self.directory / "spec.json"

    @property
    def metrics(self) -> Path:
        """What the workers say (stages/metrics.py)."""
        return self.directory / "metrics.jsonl"

    @property
    def log(self) -> Path:
        """What the workers print."""
        return self.directory / "log.txt"

    @property
    def stacks(self) -> Path:
        """The files by which a rank that stalls is noticed."""
        return self.directory / "stacks"

    def stack_file(self, attempt: int, rank: int) -> Path:
        """Where a rank's stacks go."""
        return self.stacks / f"attempt-{attempt}-rank-{rank}.txt"

    def stack_files(self, attempt: int) -> dict[int, Path]:
        """The files of an attempt's ranks that are there, by rank."""
        if not self.stacks.is_dir():
            return {}
        matches = [(_STACK_FILE.fullmatch(path.name), path) for path in self.stacks.iterdir()]
        return {int(match[2]): path for match, path in matches if match and int(match[1]) == attempt}

    def save_request(self, attempt: int) -> Path:
        """The file in which the runner asks the workers of an attempt to save and to leave."""
        return self.directory / f".save_request.{attempt}"

    def save_requests(self) -> list[Path]:
        """Those of all attempts that left one."""
        return list(self.directory.glob(".save_request.*"))

    def lifeline(self, attempt: int) -> Path:
        """The file that workers on other machines hang on."""
        return self.directory / f".lifeline.{attempt}"

    @property
    def hostfile(self) -> Path:
        """The hosts of this stage, for DeepSpeed's runner."""
        return self.directory / "hostfile"

    @property
    def environment(self) -> Path:
        """The workers' environment on other machines."""
        return self.directory / "environment.json"


def is_checkpoint_name(name: str) -> bool:
    """Whether a stage would keep a checkpoint under this name."""
    stage = StagePaths(Path())
    return name in (stage.initial.name, stage.final.name) or name.startswith((_STEP, _CONVERTED))


def converted_directory(checkpoint: Path) -> Path:
    """Where `step_N` is kept once it is rewritten for other ranks or another ZeRO stage: `converted_N` beside it."""
    return checkpoint.with_name(checkpoint.name.replace(_STEP, _CONVERTED, 1))


def staging_directory(directory: Path) -> Path:
    """The temporary sibling under which `directory` is written until it is whole."""
    return directory.with_name(f".{directory.name}{_INCOMPLETE}")


def removal_directory(directory: Path) -> Path:
    """The hidden sibling that `directory` becomes before its files are removed."""
    return directory.with_name(f".{directory.name}{_REMOVED}")


def broken_directory(directory: Path, number: int) -> Path:
    """The sibling that `directory` becomes when it is found broken, with `number` directories of its name so far."""
    return directory.with_name(f"{_SET_ASIDE}{directory.name}" + (f"-{number}" if number > 1 else ""))


def preparation_lock(directory: Path) -> Path:
    """The hidden sibling that the process which prepares the dataset `directory` holds locked."""
    return directory.with_name(f".{directory.name}.lock")


def is_set_aside(path: Path) -> bool:
    """Whether a name says that what bears it was found broken."""
    return path.name.startswith(_SET_ASIDE)


def is_unfinished(path: Path) -> bool:
    """Whether a name says that what bears it was being written, or removed, when its process died."""
    return path.name.startswith(".") and (_INCOMPLETE in path.name or path.name.endswith(_REMOVED))
