"""Checks that a folder, loaded by Transformers as its users load it, computes the logits of a model of ours.

As a program, it writes the folder's logits: `python -m stages.huggingface.same_logits FOLDER IDS LOGITS`. It runs in a
process of its own: Transformers copies an export's code into a folder that it chooses when it is imported.
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
    """Compares the logits of `directory` with those of `model`, which is float32, on random token ids.

    `what` names it in messages. `own_code`: whether it holds code, which growctl has just written.

    Raises LogitsDiffer if they differ by more than TOLERANCE allows, or if Transformers cannot load it.
    """
    try:
        version = importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        install = "to check, run `pip install 'growctl[export]'`"
        return LogitsCheck(not_checked=f"Transformers is not installed; {install}")
    shape = (CHECKED_SEQUENCES, min(context_length, CHECKED_TOKENS))
    input_ids = torch.randint(num_ids, shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(input_ids.to(model.embedding.weight.device)).cpu()
    found = _logits_of(directory, input_ids, what, own_code)
    difference = (found - expected).abs().max().item()
    allowed = TOLERANCE * max(1.0, expected.abs().max().item())
    if not difference <= allowed:
        raise LogitsDiffer(
            f"Transformers {version} computes logits from {what} that differ from growctl's by up to "
            f"{difference:.3g}; at most {allowed:.3g} is allowed. Nothing was kept"
        )
    return LogitsCheck(transformers=version, largest_difference=difference, allowed=allowed)


def _logits_of(directory: Path, input_ids: torch.Tensor, what: str, own_code: bool) -> torch.Tensor:
    with TemporaryDirectory() as folder:
        ids, logits = Path(folder) / "ids.safetensors", Path(folder) / "logits.safetensors"
        safetensors.torch.save_file({"input_ids": input_ids}, ids)
        environment = os.environ | {
            "HF_MODULES_CACHE": folder,
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_VERBOSITY": "error",
            "PYTHONWARNINGS": "ignore",
        }
        program = [sys.executable, "-m", "stages.huggingface.same_logits", str(directory), str(ids), str(logits)]
        program += ["own-code"] if own_code else []
        result = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
        if result.returncode:
            reason = (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[-1]
            raise LogitsDiffer(f"Transformers cannot load {what}: {reason}. It must be 5.19 or newer. Nothing was kept")
        return safetensors.torch.load_file(logits)["logits"]


def main(directory: str, ids_file: str, logits_file: str, own_code: str | None = None) -> None:
    """Writes the float32 logits for the `input_ids` in `ids_file` to `logits_file`, both safetensors.

    Code in the folder runs only with `own_code`.
    """
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=bool(own_code), dtype=torch.float32)
    with torch.no_grad():
        logits = model(safetensors.torch.load_file(ids_file)["input_ids"]).logits
    safetensors.torch.save_file({"logits": logits.contiguous()}, logits_file)


if __name__ == "__main__":
    main(*sys.argv[1:])
