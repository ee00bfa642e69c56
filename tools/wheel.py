"""Builds the sdist and the wheel, checks their content, and runs the wheel in an empty environment.

`make test-wheel` runs it. It installs growctl with all dependencies from the package index that pip is set up for.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from tools.pages import REPOSITORY

PACKAGES = ("growctl", "stages", "model", "schedules")
"""The top-level folders that an installation holds."""

SDIST_EXTRAS = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md")
"""What an sdist also holds, at its top."""

GENERATED = {"PKG-INFO", "setup.cfg"}
"""What setuptools adds to an sdist, besides `growctl.egg-info`."""

TEXT = "".join(
    json.dumps({"text": f"{number} times a model grew, and it still knew what it had learnt before. " * 20}) + "\n"
    for number in range(40)
)

SCHEDULE = """\
defaults: [quickstart]
data: {source: text.jsonl, vocab_size: 300, validation_fraction: 0.2}
stages:
  - {name: small, attention_tokens: 8, ffn_tokens: 16, train_steps: 4}
  - {name: large, attention_tokens: 16, ffn_tokens: 40, train_steps: 4}
training: {sequence_length: 32, batch_size: 8}
learning_rate: {warmup_steps: 1}
growth: {ramp: 0.5}
evaluation: {every: 4, max_sequences: 16}
controls: []
launch: {devices: 1}
"""
"""A ladder that trains in seconds, and that needs a shipped schedule to be found."""

COMMANDS = (
    ("--version",),
    ("plan", "quickstart"),
    ("validate", "pile_1.4b"),
    ("schema",),
    ("run", "tiny.yaml"),
    ("show", "tiny"),
    ("generate", "tiny", "a model", "--max-new-tokens", "8"),
    ("eval", "tiny", "--text", "text.jsonl"),
    ("export", "tiny", "exported", "--to", "huggingface"),
    ("verify", "--integrity", "runs"),
    ("report", "tiny"),
)


def packaged_files(repository: Path = REPOSITORY) -> set[str]:
    """The files that every distribution must hold: all of the packages that git does not ignore."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *PACKAGES]
    files = subprocess.run(listed, cwd=repository, check=True, capture_output=True, text=True).stdout.split("\n")
    return {file for file in files if file and (repository / file).is_file()}


def problems(kind: str, found: Iterable[str], wanted: set[str]) -> list[str]:
    """What is wrong with the files of a distribution, one sentence each."""
    held = set(found)
    return [f"the {kind} lacks {file}" for file in sorted(wanted - held)] + [
        f"the {kind} should not hold {file}" for file in sorted(held - wanted)
    ]


def wheel_files(wheel: Path) -> set[str]:
    """The files in a wheel, without its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def sdist_files(sdist: Path) -> set[str]:
    """The files in an sdist below its folder, without those that setuptools generates."""
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    return {name for name in names - GENERATED if not name.startswith("growctl.egg-info/")}


def build(folder: Path, files: Iterable[str]) -> tuple[Path, Path]:
    """Builds the sdist from copies of `files`, and the wheel from the sdist.

    In the checkout, setuptools would also package files that the list of an earlier build names.
    """
    source, built = folder / "source", folder / "built"
    for file in files:
        (source / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / file, source / file)
    _run([sys.executable, "-m", "build", "--outdir", str(built), str(source)], cwd=folder)
    [sdist], [wheel] = built.glob("*.tar.gz"), built.glob("*.whl")
    return sdist, wheel


def try_out(wheel: Path, folder: Path) -> None:
    """Installs `wheel` into an empty environment, and trains a ladder with it in an empty directory."""
    environment = folder / "environment"
    venv.create(environment, with_pip=True)
    python = environment / "bin/python"
    _run([str(python), "-m", "pip", "install", "--quiet", str(wheel)], cwd=folder)
    empty = folder / "empty"
    empty.mkdir()
    (empty / "text.jsonl").write_text(TEXT)
    (empty / "tiny.yaml").write_text(SCHEDULE)
    for command in COMMANDS:
        _run([str(environment / "bin/growctl"), *command], cwd=empty)


def _run(command: Sequence[str], cwd: Path) -> None:
    """Runs a command away from the checkout; stops with its output if it fails."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "GROWCTL_RUNS_DIR")}
    done = subprocess.run(command, cwd=cwd, env=kept | {"PYTHONNOUSERSITE": "1"}, capture_output=True, text=True)
    shown = " ".join(Path(part).name if part.startswith("/") else part for part in command)
    if done.returncode:
        sys.exit(f"{shown} failed with exit code {done.returncode}:\n{done.stdout}{done.stderr}")
    print(f"ok: {shown}", flush=True)


def main() -> None:
    """Builds, checks and tries out; exits with 1 at the first problem."""
    with tempfile.TemporaryDirectory(prefix="growctl-wheel-") as name:
        folder = Path(name)
        wanted = packaged_files()
        sdist, wheel = build(folder, wanted | set(SDIST_EXTRAS))
        found = problems("wheel", wheel_files(wheel), wanted)
        found += problems("sdist", sdist_files(sdist), wanted | set(SDIST_EXTRAS))
        if found:
            sys.exit("\n".join(found))
        print(f"ok: {len(wanted)} files in {sdist.name} and {wheel.name}", flush=True)
        try_out(wheel, folder)


if __name__ == "__main__":
    main()
