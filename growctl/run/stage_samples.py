"""Lets the model of a finished stage write texts, if the schedule has prompts. An error becomes a message.

A process of its own writes them, so that the run goes on if the system kills it for lack of memory.
"""

import sys
from collections.abc import Callable

from growctl.run.resume import run_apart
from growctl.text.formatting import short_count
from model.config import num_parameters
from model.errors import Failure, UserError
from stages.checkpoint.manifest import manifest_hash, read_manifest
from stages.generate.text_samples import MOST_SECONDS, TextRequest, TextSamples, read_samples
from stages.stage_dir import StagePaths

MOST_PARAMETERS = 2_000_000_000
"""The texts are written on this machine's CPU: this many parameters take 8 GB of memory and about a second for each
token."""

PROGRAM = (sys.executable, "-m", "stages.generate.text_samples")

KILL_SECONDS = MOST_SECONDS + 180.0
"""The process that writes is killed after this time, loading the model included."""


def write_new_samples(stage: StagePaths, request: TextRequest, tell: Callable[[str], None]) -> TextSamples | None:
    """The texts that `stage.final` wrote just now; None if none are wanted, or if it has written them before.

    They are written again when the checkpoint or the request has changed. Texts that do not belong to the checkpoint
    and the request are removed first, so that the report never shows them.
    """
    try:
        written = read_samples(stage.samples)
        if written and (written.checkpoint, written.request) == (manifest_hash(stage.final), request):
            return None
        stage.samples.unlink(missing_ok=True)
        if not request.prompts:
            return None
        size = num_parameters(read_manifest(stage.final).model)
        if size > MOST_PARAMETERS:
            tell(
                f"no text samples: {short_count(size)} parameters are too many to write on the CPU; "
                f"growctl generate {stage.final} writes text, also on a GPU"
            )
            return None
        tell(f"{stage.directory.name}: writing texts on the CPU")
        written = write_apart(stage, request)
        for problem in written.problems:
            tell(problem)
        return written
    except Exception as error:  # whatever goes wrong here, the stage is trained
        kind = "" if isinstance(error, UserError | Failure | OSError) else f"{type(error).__name__}: "
        tell(f"no text samples: {kind}{error}")
        return None


def write_apart(stage: StagePaths, request: TextRequest) -> TextSamples:
    """Lets a separate process, which ends with this one, write the texts; raises Failure with the reason if it fails.

    The process appends its output to the stage's log.
    """
    command = [*PROGRAM, str(stage.final), request.model_dump_json(), str(stage.samples)]
    run_apart(command, {}, stage.log, KILL_SECONDS)
    written = read_samples(stage.samples)
    if written is None:
        raise Failure(f"{stage.samples} cannot be read")
    return written
