"""The tensors of a `parameters` checkpoint: one safetensors file each, with float32 value and Adam moments.

`stages.checkpoint.manifest` describes the directory. `stages.engine.engine_state` loads it into an engine and saves it
from one.
"""

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from model.growth import ParameterState, root_mean_square
from model.initialization import build_model
from model.language_model import LanguageModel
from stages.checkpoint.files import FileEntry, write_file
from stages.checkpoint.manifest import CheckpointError, Manifest, parameter_file, read_file, read_manifest

MOMENTS = ("exp_avg", "exp_avg_sq")

WRITERS = 2
"""Parameters written at a time: one is hashed while another is written to disk."""


def write_parameter(directory: Path, name: str, state: ParameterState | Tensor) -> tuple[str, FileEntry]:
    """Writes one parameter's float32 value and moments below `directory`. Returns its relative path and manifest entry.

    A plain tensor has moments of zero, which are not written; neither are empty moments.
    """
    file = parameter_file(name)
    parts = state._asdict() if isinstance(state, ParameterState) else {"fp32": state}
    written = {key: tensor for key, tensor in parts.items() if key == "fp32" or tensor.numel()}
    tensors = {key: tensor.detach().to("cpu", torch.float32).contiguous() for key, tensor in written.items()}
    entry = write_file(directory / file, safetensors.torch.save(tensors))
    return file, entry.model_copy(update={"rms": root_mean_square(tensors["fp32"])})


def write_parameters(
    directory: Path,
    parameters: Iterable[tuple[str, ParameterState | Tensor]],
    on_written: Callable[[int], None] | None = None,
) -> dict[str, FileEntry]:
    """Writes `parameters`, up to two at a time while the iterator computes the next. Returns their manifest entries.

    `on_written(done)` is called with the number written so far. The first error, from the iterator or from writing, is
    raised after the writes in progress have ended.
    """
    files: dict[str, FileEntry] = {}

    def collect(written: Future[tuple[str, FileEntry]]) -> None:
        file, files[file] = written.result()
        if on_written:
            on_written(len(files))

    with ThreadPoolExecutor(WRITERS) as pool:
        writing: deque[Future[tuple[str, FileEntry]]] = deque()
        for name, state in parameters:
            if len(writing) == WRITERS:
                collect(writing.popleft())
            writing.append(pool.submit(write_parameter, directory, name, state))
        while writing:
            collect(writing.popleft())
    return files


def require_parameters(directory: Path, manifest: Manifest) -> Manifest:
    """The manifest of the checkpoint `directory`. Raises CheckpointError for an engine checkpoint."""
    if manifest.kind != "parameters":
        raise CheckpointError(
            f"{directory} is an engine checkpoint and can only resume its stage; use a final/ or initial/ directory "
            "instead"
        )
    return manifest


def read_parameter(directory: Path, manifest: Manifest, name: str, *, moments: bool = True) -> ParameterState:
    """One parameter of a `parameters` checkpoint, float32 on the CPU. Moments that are not stored are zeros.

    With `moments=False`, the moments are empty tensors. Raises CheckpointError if the parameter is missing or damaged;
    its hash is checked against the manifest.
    """
    file = parameter_file(name)
    if manifest.kind != "parameters" or file not in manifest.files:
        raise CheckpointError(f"{directory} has no values of {name}")
    data = read_file(directory, manifest, file)
    try:
        tensors = safetensors.torch.load(data)
        fp32 = tensors["fp32"]
    except (SafetensorError, KeyError) as error:
        raise CheckpointError(f"{directory} is broken: {file} has no value of {name} ({error})") from error
    if not moments:
        return ParameterState(fp32, torch.empty(0), torch.empty(0))
    first, second = (tensors.get(key, torch.zeros_like(fp32)) for key in MOMENTS)
    return ParameterState(fp32, first, second)


def fill_model(model: LanguageModel, directory: Path, manifest: Manifest) -> None:
    """Copies the float32 values of a `parameters` checkpoint into `model`, which has the manifest's configuration."""
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
    """The model of any finished, expanded or imported checkpoint, in eval mode.

    Raises CheckpointError if the checkpoint is missing, broken, or an engine checkpoint.
    """
    directory = Path(path)
    manifest = require_parameters(directory, read_manifest(directory))
    model = build_model(manifest.model, device=device)
    fill_model(model, directory, manifest)
    return model.to(dtype).eval()
