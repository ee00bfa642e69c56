"""Engine checkpoints hold pickles, and loading a pickle can run code. These checks come before it.

growctl loads an engine checkpoint only from the runs directory that it lies in, only if every file has the hash in its
sealed manifest, and only if its pickles name nothing but tensors and what DeepSpeed writes.
"""

from pathlib import Path

from stages.checkpoint.manifest import CheckpointError, Manifest

DEEPSPEED_GLOBALS = frozenset(
    {
        "deepspeed.runtime.fp16.loss_scaler.LossScaler",
        "deepspeed.runtime.zero.config.ZeroStageEnum",
        "deepspeed.utils.tensor_fragment.fragment_address",
    }
)
"""The globals that DeepSpeed 0.19 pickles (ZeRO 1 to 3, bf16 and fp32), in addition to those that torch considers
safe."""


def check_origin(directory: Path, runs_dir: Path) -> None:
    """Raises CheckpointError unless the engine checkpoint `directory` lies in `runs_dir`, or is linked into it."""
    if not any(place(directory).is_relative_to(place(runs_dir)) for place in (Path.absolute, Path.resolve)):
        raise CheckpointError(
            f"{directory} is an engine checkpoint outside {runs_dir}. Its files are pickles, which growctl loads only "
            "from the runs directory that they lie in: give that directory with --runs-dir, or use a final/ or "
            "initial/ directory, which holds no pickles"
        )


def list_pickles(directory: Path, manifest: Manifest) -> list[str]:
    """The pickles in an engine checkpoint. Raises CheckpointError if one is not in its manifest."""
    names = sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*.pt"))
    if strangers := set(names) - set(manifest.files):
        raise CheckpointError(f"{directory} cannot be loaded: {min(strangers)} is not in its manifest")
    return names


def check_pickles(directory: Path, names: list[str]) -> None:
    """Raises CheckpointError if one of the pickles `names` uses globals that neither torch nor this module allows."""
    from torch.serialization import get_unsafe_globals_in_checkpoint

    for name in names:
        try:
            strange = set(get_unsafe_globals_in_checkpoint(directory / name)) - DEEPSPEED_GLOBALS
        except Exception as error:  # a file that torch cannot parse is not safe to unpickle
            raise CheckpointError(f"{directory} cannot be loaded: {name} cannot be checked ({error})") from error
        if strange:
            raise CheckpointError(
                f"{directory} cannot be loaded: {name} uses {', '.join(sorted(strange))}, which DeepSpeed never "
                "writes; a pickle can run any code"
            )
