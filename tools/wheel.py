"""Builds the sdist and the wheel, checks their content, and runs the wheel in an empty environment.

`make test-wheel` runs it. It installs growctl with all dependencies from the package index that pip is set up for.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

from tools.tables import REPOSITORY

PACKAGES = ("growctl", "stages", "model", "schedules")
"""The top-level folders that an installation holds."""

SDIST_EXTRAS = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md")
"""What an sdist also holds, at its top, besides what setuptools generates."""

TEXT = "".join(
    f'{{"text": "{number} times a model grew, and it still knew what it had learnt before."}}\n'
    for number in range(800)
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


def packaged_files() -> set[str]:
    """The files that every distribution must hold: all of the packages that git does not ignore."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *PACKAGES]
    files = subprocess.run(listed, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout.split("\n")
    return {file for file in files if file and (REPOSITORY / file).is_file()}


def build(folder: Path, files: set[str]) -> tuple[Path, Path]:
    """Builds the sdist from copies of `files`, and the wheel from the sdist.

    In the checkout, setuptools would also package files that the list of an earlier build names.
    """
    source, built = folder / "source", folder / "built"
    for file in files:
        (source / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / file, source / file)
    run(sys.executable, "-m", "build", "--outdir", built, source, cwd=folder)
    [sdist], [wheel] = built.glob("*.tar.gz"), built.glob("*.whl")
    return sdist, wheel


def check(distribution: Path, held: set[str], wanted: set[str]) -> None:
    """Stops with the names of the files that a distribution lacks, or should not hold."""
    if wrong := [f"lacks {file}" for file in wanted - held] + [f"should not hold {file}" for file in held - wanted]:
        sys.exit("\n".join(f"{distribution.name} {what}" for what in sorted(wrong)))
    print(f"ok: {len(held)} files in {distribution.name}", flush=True)


def run(*command: str | Path, cwd: Path) -> None:
    """Runs a command away from the checkout; stops with its output if it fails."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "GROWCTL_RUNS_DIR")}
    done = subprocess.run(command, cwd=cwd, env=kept | {"PYTHONNOUSERSITE": "1"}, capture_output=True, text=True)
    shown = " ".join(Path(word).name if str(word).startswith("/") else str(word) for word in command)
    if done.returncode:
        sys.exit(f"{shown} failed with exit code {done.returncode}:\n{done.stdout}{done.stderr}")
    print(f"ok: {shown}", flush=True)


def main() -> None:
    """Builds, checks and tries out; exits with 1 at the first problem."""
    with tempfile.TemporaryDirectory(prefix="growctl-wheel-") as name:
        folder, wanted = Path(name), packaged_files()
        sdist, wheel = build(folder, wanted | set(SDIST_EXTRAS))
        with zipfile.ZipFile(wheel) as archive:
            check(wheel, {file for file in archive.namelist() if ".dist-info/" not in file}, wanted)
        with tarfile.open(sdist) as archive:
            files = {member.name.partition("/")[2] for member in archive if member.isfile()}
        generated = {file for file in files if file.startswith("growctl.egg-info/")} | {"PKG-INFO", "setup.cfg"}
        check(sdist, files - generated, wanted | set(SDIST_EXTRAS))
        venv.create(folder / "environment", with_pip=True)
        run(folder / "environment/bin/python", "-m", "pip", "install", "--quiet", wheel, cwd=folder)
        empty = folder / "empty"
        empty.mkdir()
        (empty / "text.jsonl").write_text(TEXT)
        (empty / "tiny.yaml").write_text(SCHEDULE)
        for command in COMMANDS:
            run(folder / "environment/bin/growctl", *command, cwd=empty)


if __name__ == "__main__":
    main()
