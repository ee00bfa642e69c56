"""Checks that a folder, loaded by Transformers as its users load it, computes the logits of a model of ours.

As a program, it writes the folder's logits: `python -m stages.huggingface.same_logits FOLDER INPUTS LOGITS`. It runs in
a process of its own: Transformers copies an export's code into a folder that it chooses when it is imported.
"""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import safetensors.torch
import torch

from model.errors import Failure
from model.language_model import LanguageModel
from stages.huggingface.record import LogitsCheck

TOLERANCE = 1e-5
"""The largest difference of two logits in float32: absolute or, with logits above 1, relative to the largest. float32
itself rounds logits of 25 by as much as 3e-5."""

CHECKED_SEQUENCES, CHECKED_TOKENS = 2, 256


class LogitsDiffer(Failure):
    """Transformers cannot load a folder, or computes other logits than our model. The message is for the user."""


def check_logits(
    directory: Path, model: LanguageModel, num_ids: int, context_length: int, *, what: str, own_code: bool
) -> LogitsCheck:
    """Compares the logits of `directory` with those of `model`, which is float32, on random token ids or pixels.

    `what` names it in messages. `own_code`: whether it holds code, which growctl has just written.

    Raises LogitsDiffer if they differ by more than TOLERANCE allows, or if Transformers cannot load it.
    """
    try:
        version = importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        install = "to check, run `pip install 'growctl[export]'`"
        return LogitsCheck(not_checked=f"Transformers is not installed; {install}")
    generator, samples, image = torch.Generator().manual_seed(0), CHECKED_SEQUENCES, model.config.image
    inputs = torch.randint(num_ids, (samples, min(context_length, CHECKED_TOKENS)), generator=generator)
    if image is not None:
        inputs = torch.randn(samples, image.channels, image.size, image.size, generator=generator)
    with torch.no_grad():
        expected = model(inputs.to(model.embedding.weight.device)).cpu()
    found = _logits_of(directory, {"pixel_values" if image else "input_ids": inputs}, what, own_code)
    difference = (found - expected).abs().max().item()
    allowed = TOLERANCE * max(1.0, expected.abs().max().item())
    if not difference <= allowed:
        raise LogitsDiffer(
            f"Transformers {version} computes logits from {what} that differ from growctl's by up to "
            f"{difference:.3g}; at most {allowed:.3g} is allowed. Nothing was kept"
        )
    return LogitsCheck(transformers=version, largest_difference=difference, allowed=allowed)


def _logits_of(directory: Path, inputs: dict[str, torch.Tensor], what: str, own_code: bool) -> torch.Tensor:
    with TemporaryDirectory() as folder:
        given, logits = Path(folder) / "inputs.safetensors", Path(folder) / "logits.safetensors"
        safetensors.torch.save_file(inputs, given)
        environment = os.environ | {
            "HF_MODULES_CACHE": folder,
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_VERBOSITY": "error",
            "PYTHONWARNINGS": "ignore",
        }
        program = [sys.executable, "-m", "stages.huggingface.same_logits", str(directory), str(given), str(logits)]
        program += ["own-code"] if own_code else []
        result = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
        if result.returncode:
            reason = (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[-1]
            raise LogitsDiffer(f"Transformers cannot load {what}: {reason}. It must be 5.19 or newer. Nothing was kept")
        return safetensors.torch.load_file(logits)["logits"]


def main(directory: str, inputs_file: str, logits_file: str, own_code: str | None = None) -> None:
    """Writes the float32 logits for the ids or pixels in `inputs_file` to `logits_file`, both safetensors.

    Code in the folder runs only with `own_code`.
    """
    from transformers import AutoModelForCausalLM, AutoModelForImageClassification

    inputs = safetensors.torch.load_file(inputs_file)
    auto_class = AutoModelForCausalLM if "input_ids" in inputs else AutoModelForImageClassification
    model = auto_class.from_pretrained(directory, trust_remote_code=bool(own_code), dtype=torch.float32)
    with torch.no_grad():
        logits = model(**inputs).logits
    safetensors.torch.save_file({"logits": logits.contiguous()}, logits_file)


if __name__ == "__main__":
    main(*sys.argv[1:])
