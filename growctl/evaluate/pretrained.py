"""Opens the checkpoint that a user names, with its model and its tokenizer. Imports torch on use."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from growctl.find_checkpoint import dataset_of, find_checkpoint
from growctl.run.resume import as_parameters
from growctl.text.escaping import say
from model.errors import UserError
from stages.checkpoint.files import hash_file
from stages.checkpoint.manifest import read_manifest
from stages.stage_dir import TOKENIZER_NAME

if TYPE_CHECKING:
    import torch

    from stages.checkpoint.pretrained import Pretrained

Dtype = Literal["float32", "bfloat16"]

tell = partial(say, error=True)
"""Says what a checkpoint's name was taken for, and warnings, on standard error."""


@contextmanager
def open_pretrained(
    reference: str,
    runs_dir: Path,
    tell: Callable[[str], None] = tell,
    *,
    tokenizer: Path | None = None,
    device: str = "auto",
    dtype: Dtype = "float32",
) -> "Iterator[Pretrained]":
    """Yields the checkpoint that `reference` stands for (see `find_checkpoint`), with its model on `device`.

    A checkpoint within a stage is converted for the time being, and gets the tokenizer of its dataset. `tell` gets a
    warning if `tokenizer` is not the file that the checkpoint was trained with.

    Raises CheckpointError if there is no such checkpoint, if it is broken, or if no tokenizer fits it.
    """
    import torch

    from stages.checkpoint.pretrained import load_pretrained

    chosen = torch_device(device)
    checkpoint = find_checkpoint(reference, runs_dir, tell)
    manifest = read_manifest(checkpoint)
    if tokenizer is not None:
        if tokenizer.is_file() and manifest.tokenizer_sha256 not in (None, hash_file(tokenizer)):
            tell(
                f"--tokenizer {tokenizer} is not the file that {checkpoint} was trained with; if it is another "
                "tokenizer, its ids stand for other text, and all results mean nothing"
            )
    elif manifest.kind == "engine" and manifest.model.image is None:
        with suppress(UserError):  # `load_pretrained` says how to give one
            tokenizer = dataset_of(checkpoint, None, runs_dir) / TOKENIZER_NAME
    with as_parameters(checkpoint, runs_dir, tell) as parameters:
        loaded = load_pretrained(parameters, chosen, getattr(torch, dtype), tokenizer)
        yield loaded._replace(directory=checkpoint)


def torch_device(name: str) -> "torch.device":
    """The device `name`; `auto` is the first GPU if there is one, else the CPU. Raises UserError if it is not there."""
    import torch

    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    allowed = ["auto", "cpu", *(["cuda"] if gpus else []), *gpus]
    if name not in allowed:
        raise UserError(f"--device {name!r}: this machine has {', '.join(allowed)}")
    return torch.device(("cuda" if gpus else "cpu") if name == "auto" else name)
