"""Checks that an export, loaded by Transformers as its users load it, computes the model's logits."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import safetensors.torch
import torch
from packaging.version import Version

from model.errors import Failure
from model.language_model import LanguageModel
from stages.huggingface import logits_program
from stages.huggingface.record import LogitsCheck

TOLERANCE = 1e-5
"""The largest difference of two logits in float32: absolute or, with logits above 1, relative to the largest. float32
itself rounds logits of 25 by as much as 3e-5."""

OLDEST = Version("5.19")
"""The oldest Transformers that exports are tested with."""

CHECKED_SEQUENCES, CHECKED_TOKENS = 2, 256


class ExportDiffers(Failure):
    """Transformers cannot load an export, or computes other logits than the model. The message is for the user."""


def skipped_check() -> LogitsCheck | None:
    """The result if this machine cannot check an export; None if it can."""
    install = "to check exports, run `pip install 'growctl[export]'`"
    try:
        version = importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        return LogitsCheck(not_checked=f"Transformers is not installed; {install}")
    if Version(version) < OLDEST:
        return LogitsCheck(
            transformers=version, not_checked=f"Transformers {version} is older than {OLDEST}; {install}"
        )
    return None


def check_logits(directory: Path, model: LanguageModel, num_ids: int, context_length: int) -> LogitsCheck:
    """Compares the logits of the export in `directory` with those of `model`, which is float32, on random token ids.

    Raises ExportDiffers if they differ by more than TOLERANCE allows, or if Transformers cannot load the export.
    """
    if skipped := skipped_check():
        return skipped
    shape = (CHECKED_SEQUENCES, min(context_length, CHECKED_TOKENS))
    input_ids = torch.randint(num_ids, shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(input_ids.to(model.embedding.weight.device)).cpu()
    version = importlib.metadata.version("transformers")
    difference = (_logits_of_export(directory, input_ids) - expected).abs().max().item()
    allowed = TOLERANCE * max(1.0, expected.abs().max().item())
    if not difference <= allowed:
        raise ExportDiffers(
            f"Transformers {version} computes logits from the export that differ from the checkpoint's by up to "
            f"{difference:.3g}; at most {allowed:.3g} is allowed. The export was removed"
        )
    return LogitsCheck(transformers=version, largest_difference=difference, allowed=allowed)


def _logits_of_export(directory: Path, input_ids: torch.Tensor) -> torch.Tensor:
    with TemporaryDirectory() as folder:
        ids, logits = Path(folder) / "ids.safetensors", Path(folder) / "logits.safetensors"
        safetensors.torch.save_file({"input_ids": input_ids}, ids)
        environment = os.environ | {
            "HF_MODULES_CACHE": folder,
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_VERBOSITY": "error",
            "PYTHONWARNINGS": "ignore",
        }
        program = [sys.executable, "-P", str(logits_program.__file__), str(directory), str(ids), str(logits)]
        result = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
        if result.returncode:
            reason = (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[-1]
            raise ExportDiffers(f"Transformers cannot load the export, which was removed: {reason}")
        return safetensors.torch.load_file(logits)["logits"]
