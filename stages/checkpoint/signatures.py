"""Which engine checkpoints may be loaded. DeepSpeed unpickles them, and a pickle can run code.

A runs directory has a secret, in the file `.keys`: the first line signs the manifests of its engine checkpoints, and a
checkpoint is loaded only where one of the lines made its signature. The manifest's seal covers every file's hash, so
the signature covers every byte. As a second line, a pickle is refused that names anything but what DeepSpeed writes.
"""

import hashlib
import hmac
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

from model.errors import UserError
from stages.checkpoint.manifest import CheckpointError, Manifest, sync_path

KEYS_NAME = ".keys"
"""Below the runs directory."""

DEEPSPEED_GLOBALS = frozenset(
    {
        "deepspeed.runtime.fp16.loss_scaler.LossScaler",
        "deepspeed.runtime.zero.config.ZeroStageEnum",
        "deepspeed.utils.tensor_fragment.fragment_address",
    }
)
"""What DeepSpeed 0.19 pickles, ZeRO 1 to 3, bf16 and fp32, beside what torch itself takes for safe."""

_KEY = re.compile(r"[0-9a-f]{64}")


class OriginError(UserError):
    """An engine checkpoint that nobody vouches for, or keys that cannot be read."""


def check_keys(keys: Path) -> None:
    """OriginError where the file `keys` is there and cannot be used: told before there is a checkpoint to sign."""
    if keys.exists():
        _read_keys(keys)


def sign(seal: str, keys: Path) -> str:
    """The signature of a manifest's seal by the runs directory whose keys are in the file `keys`, made if missing."""
    if not keys.exists():
        _make_keys(keys)
    return _signature(seal, _read_keys(keys)[0])


def check_origin(directory: Path, manifest: Manifest, keys: Path) -> None:
    """OriginError where no key in the file `keys` made the signature of the engine checkpoint in `directory`."""
    if manifest.seal and manifest.signature and keys.exists():
        made = (_signature(manifest.seal, key) for key in _read_keys(keys))
        if any(hmac.compare_digest(signature, manifest.signature) for signature in made):
            return
    trust, away = "", f"move {directory} away, and its stage goes on from the checkpoint before it"
    if manifest.signature is None:
        what = "is not signed"
    else:
        what = f"was not saved by a run in {keys.parent}"
        trust = f"if you trust it, append the line of {KEYS_NAME} in the runs directory that saved it to {keys}; else "
    raise OriginError(
        f"{directory} {what}. Its files are pickles, which can run any code when they are loaded, so growctl does not "
        f"load them: {trust}{away}"
    )


def list_pickles(directory: Path, manifest: Manifest) -> list[str]:
    """The pickles that are in an engine checkpoint; CheckpointError where one is not in its manifest."""
    names = sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*.pt"))
    if strangers := set(names) - set(manifest.files):
        raise CheckpointError(f"{directory} is not loaded: {min(strangers)} is not in its manifest")
    return names


def check_pickles(directory: Path, names: list[str]) -> None:
    """CheckpointError where one of the files `names` would, loaded, use anything but tensors and DeepSpeed's own."""
    from torch.serialization import get_unsafe_globals_in_checkpoint

    for name in names:
        try:
            strange = set(get_unsafe_globals_in_checkpoint(directory / name)) - DEEPSPEED_GLOBALS
        except Exception as error:  # whatever torch cannot read through is not safe to unpickle
            raise CheckpointError(f"{directory} is not loaded: {name} cannot be read through ({error})") from error
        if strange:
            raise CheckpointError(
                f"{directory} is not loaded: {name} would use {', '.join(sorted(strange))}, which DeepSpeed does not "
                "write; a pickle can run any code"
            )


def _make_keys(keys: Path) -> None:
    """A file that only its owner can read; where another process is faster, its file stays."""
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
        raise OriginError(f"{keys} holds no key; move it away and a new one is made")
    return [bytes.fromhex(line) for line in lines]


def _signature(seal: str, key: bytes) -> str:
    return hmac.new(key, seal.encode(), hashlib.sha256).hexdigest()
