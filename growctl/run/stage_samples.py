"""Lets the model of a finished stage write texts, if the schedule has prompts. Never stops a run."""

from collections.abc import Callable

from growctl.text.formatting import short_count
from model.config import num_parameters
from stages.checkpoint.manifest import manifest_hash, read_manifest
from stages.generate.text_samples import TextRequest, TextSamples, read_samples, write_samples
from stages.stage_dir import StagePaths

MOST_PARAMETERS = 2_000_000_000
"""The texts are written in this process, on its CPU: this many parameters take 8 GB of memory and about a second for
each token."""


def write_new_samples(stage: StagePaths, request: TextRequest, tell: Callable[[str], None]) -> TextSamples | None:
    """The texts that `stage.final` wrote just now; None if none are wanted, or if it has written them before.

    They are written again when the checkpoint or the request has changed. An error becomes a message. Texts that do not
    belong to the checkpoint and the request are removed first, so that the report never shows them.
    """
    try:
        known = read_samples(stage.samples)
        if known and (known.checkpoint, known.request) == (manifest_hash(stage.final), request):
            return None
        stage.samples.unlink(missing_ok=True)
        if not request.prompts:
            return None
        size = num_parameters(read_manifest(stage.final).model)
        if size > MOST_PARAMETERS:
            tell(
                f"no text samples: {short_count(size)} parameters are too many for this process; "
                f"growctl generate {stage.final} writes text, also on a GPU"
            )
            return None
        return write_samples(stage.final, request, stage.samples)
    except Exception as error:  # whatever goes wrong here, the stage is trained
        tell(f"no text samples: {type(error).__name__}: {error}")
        return None
