"""Checks exports in fresh environments: one with the oldest supported Transformers, one with the newest.

Run by `make test-interop`. Needs access to PyPI, and about 2 GB below build/interop.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.workers import REPOSITORY

VERSIONS = {"oldest": "transformers==5.19.*", "newest": "transformers>=5.19,<6"}
"""vLLM requires a Transformers below 5.20."""

FOLDER = REPOSITORY / "build" / "interop"


def main() -> int:
    """Runs the checks in each environment. Returns the exit code: 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reuse", action="store_true", help="keep environments of an earlier run")
    reuse = parser.parse_args().reuse
    from tests.interop.exports import small_models, write_export

    exports = FOLDER / "exports"
    shutil.rmtree(exports, ignore_errors=True)
    exports.mkdir(parents=True)
    folders = [write_export(exports, name) for name in small_models()]
    failed = False
    for name, requirement in VERSIONS.items():
        python = _environment(FOLDER / name, requirement, reuse)
        print(f"\n{name}: {requirement}", flush=True)
        environment = os.environ | {
            "HF_MODULES_CACHE": str(FOLDER / name / "modules"),
            "HF_HUB_OFFLINE": "1",
            "PYTHONWARNINGS": "ignore",
        }
        program = [str(python), "-P", str(Path(__file__).with_name("behaviours.py")), *map(str, folders)]
        failed |= subprocess.run(program, env=environment, cwd=FOLDER, check=False).returncode != 0
    return int(failed)


def _environment(folder: Path, requirement: str, reuse: bool) -> Path:
    """The Python of an environment with `requirement`, and with PyTorch as growctl requires it."""
    python = folder / "bin" / "python"
    if reuse and (folder / ".installed").is_file():
        return python
    print(f"installing {requirement} in {folder}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    torch = _torch_requirement()
    subprocess.run([*install, torch], check=True)  # first: what requires any PyTorch then brings no other
    subprocess.run([*install, torch, requirement, "accelerate", "peft>=0.17"], check=True)
    (folder / ".installed").touch()
    return python


def _torch_requirement() -> str:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return next(requirement for requirement in project["dependencies"] if requirement.startswith("torch"))


if __name__ == "__main__":
    sys.exit(main())
