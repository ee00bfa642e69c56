"""The tensors of a `parameters` checkpoint: one safetensors file each, with its float32 value and Adam moments.

`stages.manifest` describes the directory, `stages.engine_state` takes it into and out of a live engine.
"""

import hashlib
from pathlib import Path

import safetensors.torch
import torch

from model.growth import ParameterState
from model.initialization import build_model
from model.language_model import LanguageModel
from stages.manifest import (
    CheckpointError,
    FileEntry,
    Manifest,
    parameter_file,
    read_manifest,
    write_file,
)

MOMENTS = ("exp_avg", "exp_avg_sq")


def write_parameter(directory: Path, name: str, state: ParameterState) -> tuple[str, FileEntry]:
    """Writes one parameter's float32 value and moments below `directory`: its relative path and manifest entry."""
    file = parameter_file(name)
    tensors = {key: tensor.detach().cpu().contiguous() for key, tensor in state._asdict().items()}
    return file, write_file(directory / file, safetensors.torch.save(tensors))


def read_parameter(directory: Path, manifest: Manifest, name: str, *, moments: bool = True) -> ParameterState:
    """One parameter of a `parameters` checkpoint, float32 on the CPU; moments that it does not hold are zeros.

    Its hash is checked against the manifest. With `moments=False` they come back as empty tensors.
    """
    file = parameter_file(name)
    if manifest.kind != "parameters" or file not in manifest.files:
        raise CheckpointError(f"{directory} holds no values of {name}")
    try:
        data = (directory / file).read_bytes()
    except OSError as error:
        raise CheckpointError(f"{directory} is broken: {file}: {error.strerror}") from error
    if hashlib.sha256(data).hexdigest() != manifest.files[file].sha256:
        raise CheckpointError(f"{directory} is broken: {file} does not have the hash in the manifest")
    tensors = safetensors.torch.load(data)
    fp32 = tensors["fp32"]
    if not moments:
        return ParameterState(fp32, torch.empty(0), torch.empty(0))
    first, second = (tensors.get(key, torch.zeros_like(fp32)) for key in MOMENTS)
    return ParameterState(fp32, first, second)


def fill_model(model: LanguageModel, directory: Path, manifest: Manifest) -> None:
    """Copies the float32 values of a `parameters` checkpoint into a plain model of the manifest's configuration."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            value = read_parameter(directory, manifest, name, moments=False).fp32
            if value.shape != parameter.shape:
                raise CheckpointError(
                    f"{directory} is broken: {name} has shape {list(value.shape)}, not {list(parameter.shape)}"
                )
            parameter.copy_(value)


def load_model(
    path: str | Path, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> LanguageModel:
    """The model of any finished, expanded or imported checkpoint, ready to call; CheckpointError if unusable."""
    directory = Path(path)
    manifest = read_manifest(directory)
    if manifest.kind != "parameters":
        raise CheckpointError(
            f"{directory} is an engine checkpoint, good only for resuming its stage; use a final/ or initial/ directory"
        )
    model = build_model(manifest.model, device=device)
    fill_model(model, directory, manifest)
    return model.to(dtype).eval()
