"""Signs engine checkpoints and rejects unsigned ones, because unpickling them can run code.

Every runs directory has secret keys in the file `.keys`, one per line. The first key signs the manifests of its engine
checkpoints. growctl only loads a checkpoint that one of the keys has signed. The manifest's seal covers the hash of
every file, so the signature covers every byte. As a second defence, growctl rejects a pickle that uses anything but
tensors and what DeepSpeed writes.
"""

import hashlib
import hmac
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

from model.errors import UserError
from stages.checkpoint.files import sync_path
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

_KEY = re.compile(r"[0-9a-f]{64}")


class OriginError(UserError):
    """An engine checkpoint is not signed by a trusted key, or the keys cannot be read."""


def check_keys(keys: Path) -> None:
    """Raises OriginError if the file `keys` exists but is unusable, before there is a checkpoint to sign."""
    if keys.exists():
        _read_keys(keys)


def sign(seal: str, keys: Path) -> str:
    """The signature of a manifest's seal, with the first key in the file `keys`. Creates the file if it is missing."""
    if not keys.exists():
        _make_keys(keys)
    return _signature(seal, _read_keys(keys)[0])


def check_origin(directory: Path, manifest: Manifest, keys: Path) -> None:
    """Raises OriginError unless a key in the file `keys` signed the engine checkpoint in `directory`."""
    if manifest.seal and manifest.signature and keys.exists():
        made = (_signature(manifest.seal, key) for key in _read_keys(keys))
        if any(hmac.compare_digest(signature, manifest.signature) for signature in made):
            return
    trust, away = "", f"move {directory} away, and its stage resumes from the previous checkpoint"
    if manifest.signature is None:
        what = "is not signed"
    else:
        what = f"was not saved by a run in {keys.parent}"
        trust = (
            f"if you trust it, append the line of {keys.name} in the runs directory that saved it to {keys}; otherwise "
        )
    raise OriginError(
        f"{directory} {what}. Its files are pickles, which can run any code when they are loaded, so growctl does not "
        f"load them: {trust}{away}"
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


def _make_keys(keys: Path) -> None:
    """Creates the file `keys`, which only its owner can read. If another process was faster, its file stays."""
    temporary = keys.with_name(f"{keys.name}.{os.getpid()}-{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32) + "\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        with suppress(FileExistsError):
            os.link(temporary, keys)
    except OSError:  # a file system without links
        os.rename(temporary, keys)
    finally:
        temporary.unlink(missing_ok=True)
    sync_path(keys.parent)


def _read_keys(keys: Path) -> list[bytes]:
    lines = keys.read_text(encoding="ascii", errors="replace").split()
    for number, line in enumerate(lines, 1):
        if not _KEY.fullmatch(line):
            raise OriginError(f"{keys}: key {number} is not 64 hexadecimal digits")
    if not lines:
        raise OriginError(f"{keys} has no key; move it away, and growctl creates a new one")
    return [bytes.fromhex(line) for line in lines]


def _signature(seal: str, key: bytes) -> str:
    return hmac.new(key, seal.encode(), hashlib.sha256).hexdigest()
