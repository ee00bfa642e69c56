"""Writes the file for a bug report that `growctl doctor --bundle` makes: one zip of texts without secrets.

It never holds texts of a dataset, tokenizers, weights, or the keys that sign checkpoints.
"""

import importlib.metadata
import io
import json
import os
import platform
import sys
import zipfile
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from growctl.bugs import growctl_version
from growctl.doctor.check import Check
from growctl.doctor.table import print_check, print_summary
from growctl.redaction import REMOVED, Redaction
from growctl.text.console import Terminal

SUFFIX = ".zip"
ALLOWED_VARIABLES = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_HOME", "CXX", "DS_ACCELERATOR", "GROWCTL_DEBUG", "GROWCTL_RUNS_DIR", "LANG"),
    *("LC_ALL", "LD_LIBRARY_PATH", "MKL_NUM_THREADS", "NCCL_DEBUG", "NCCL_IB_DISABLE", "NCCL_P2P_DISABLE"),
    *("NCCL_SHM_DISABLE", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS", "PATH", "PYTHONPATH"),
    *("PYTHONSAFEPATH", "PYTORCH_CUDA_ALLOC_CONF", "SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS", "TERM"),
    *("TMPDIR", "TORCH_EXTENSIONS_DIR", "TORCH_CUDA_ARCH_LIST", "TRITON_CACHE_DIR", "VIRTUAL_ENV", "CONDA_PREFIX"),
)
"""The only environment variables whose values a bundle holds."""

_EXISTS = "{}: exists already, and doctor replaces no file; name another, or remove it"

_README = """\
This file was written by `growctl doctor --bundle` for a bug report.

Look through it before you send it. It holds no weights, no tokenizer, no text of a dataset and no keys. growctl
replaced what looks like a password, a token, an e-mail address, your user name or your home directory ({removed}, ~).
It cannot know everything that is private to you: names of runs, paths, host names and messages of errors are as they
were.

{files}
"""


class BundleError(Exception):
    """The bundle cannot be written to that file; the message says why and what to do.

    No UserError: another package may shadow the one that defines it, and doctor must start all the same.
    """


def default_file() -> str:
    """The file's name if the user gives none: growctl-bundle-20260131T120000Z.zip."""
    return f"growctl-bundle-{datetime.now(UTC):%Y%m%dT%H%M%SZ}{SUFFIX}"


def new_file(file: str) -> Path:
    """The path of a bundle to write. Raises BundleError if it exists, or cannot be written there."""
    path = Path(file)
    if os.path.lexists(path):
        raise BundleError(_EXISTS.format(file))
    if path.suffix != SUFFIX:
        raise BundleError(f"{file}: a bundle ends in {SUFFIX}; write {file}{SUFFIX}")
    if not path.parent.is_dir():
        raise BundleError(f"{file}: there is no folder {path.parent}; create it first")
    if not os.access(path.parent, os.W_OK):
        raise BundleError(f"{file}: the folder {path.parent} cannot be written; name a file in another")
    return path


def write_bundle(path: Path, texts: Mapping[str, str], redaction: Redaction) -> list[str]:
    """Writes the redacted `texts`, by name, as the new file `path`, or leaves nothing. Returns the names in the file.

    Raises BundleError if there is such a file by now, else OSError.
    """
    clean: dict[str, str] = {}
    for name, text in texts.items():
        clean[_new_name(redaction(name), clean)] = redacted(name, text, redaction)
    listed = "".join(f"{len(text.encode(errors='replace')):>9,} bytes  {name}\n" for name, text in clean.items())
    clean = {"README.txt": _README.format(removed=REMOVED, files=listed)} | clean
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in clean.items():
            archive.writestr(name, text.encode(errors="backslashreplace"))
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise BundleError(_EXISTS.format(path)) from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data.getvalue())
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        os.unlink(path)
        raise
    return list(clean)


def redacted(name: str, text: str, redaction: Redaction) -> str:
    """The redacted text of the file `name`. JSON stays JSON, if it was."""
    if name.endswith(".jsonl"):
        return "\n".join(_redacted_json(line, redaction, indent=None) for line in text.split("\n"))
    return _redacted_json(text, redaction, indent=1) if name.endswith(".json") else redaction(text)


def _redacted_json(text: str, redaction: Redaction, indent: int | None) -> str:
    try:
        data = json.loads(text)
    except ValueError:
        return redaction(text)
    end = "\n" if text.endswith("\n") else ""
    return json.dumps(redaction.of_data(data), indent=indent, ensure_ascii=False) + end


def _new_name(name: str, names: Container[str]) -> str:
    """`name`, with a number if it is among `names`: two names may be equal once they are redacted."""
    numbered, number, path = name, 1, PurePosixPath(name)
    while numbered in names:
        number += 1
        numbered = str(path.with_stem(f"{path.stem}-{number}"))
    return numbered


def machine_texts(checks: Sequence[Check], environment: Mapping[str, str]) -> dict[str, str]:
    """The parts of a bundle about this machine: doctor's result, versions, platform and allowed variables."""
    failed = any(check.state == "failed" for check in checks)
    allowed = {name: environment[name] for name in ALLOWED_VARIABLES if name in environment}
    return {
        "doctor.txt": _as_text(checks),
        "doctor.json": as_json({"ok": not failed, "checks": [asdict(check) for check in checks]}),
        "versions.txt": "".join(f"{line}\n" for line in sorted(set(_versions()), key=str.lower)),
        "platform.json": as_json(_platform()),
        "variables.json": as_json(allowed),
    }


def as_json(document: object) -> str:
    """`document` as JSON for people to read."""
    return json.dumps(document, indent=1, ensure_ascii=False, default=str) + "\n"


def _as_text(checks: Sequence[Check]) -> str:
    console = Terminal(file=io.StringIO(), width=100, color_system=None, highlight=False)
    for check in checks:
        print_check(check, console)
    print_summary(checks, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def _versions() -> Iterator[str]:
    """Every installed package, as pip freeze lists them, but without the addresses that some came from."""
    for each in importlib.metadata.distributions():
        yield f"{each.metadata['Name']}=={each.version}"


def _platform() -> dict[str, object]:
    return {
        "growctl": growctl_version(),
        "python": sys.version,
        "system": platform.system(),
        "release": platform.release(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "cores": os.cpu_count(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
