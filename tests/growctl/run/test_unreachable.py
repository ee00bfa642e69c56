"""Unreachable sources and tokenizers give one message and exit code 2, and leave no files behind."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from growctl.schedule.load import load_schedule, shipped_schedules
from stages.data.corpus import PYTHON_STDLIB
from tests.growctl.fakes.hub import growctl, hub
from tests.workers import HANG_SECONDS, REPOSITORY

SOURCE = "hf://datasets/owner/texts/train"
GIVEN = ("data.vocab_size=null", "model.vocab_size=50304", "data.tokenizer=owner/model")
START = ("checkpoint.check_space=false", "launch.devices=1")
"""`run` checks the disk and the devices first."""


def fails(runs: Path, environment: dict[str, str], *arguments: object) -> str:
    """The only message of a command that must exit with code 2 and leave no dataset, run or temporary folder."""
    done = subprocess.run(
        growctl(*arguments, "--runs-dir", runs), env=environment, capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert done.returncode == 2, done.stdout + done.stderr
    *_, message = done.stderr.splitlines()
    assert message.startswith("growctl: data."), done.stderr
    assert "Traceback" not in done.stderr
    kept = {".datasets", ".datasets/log.txt"}
    left = [path.relative_to(runs).as_posix() for path in runs.rglob("*")]
    assert [name for name in left if name not in kept and not name.endswith(".lock")] == []
    return message


@pytest.mark.parametrize(
    ("command", "schedule"), [*(("run", name) for name in shipped_schedules()), ("prepare", "pile_1.4b")]
)
def test_a_shipped_schedule_names_the_download_if_the_hub_is_unreachable(
    tmp_path: Path, command: str, schedule: str
) -> None:
    source = load_schedule(schedule).data.source
    if source == PYTHON_STDLIB:
        pytest.skip("needs no network")
    with hub() as closed:
        environment = closed.environment(tmp_path / "home")
    message = fails(tmp_path / "runs", environment, command, schedule, *(START if command == "run" else ()))
    assert not (tmp_path / "runs").exists()
    assert message.startswith(f"growctl: data.source: {source!r} ")
    if source.startswith("hf://"):
        assert re.search(r"cannot be read \(.*refused.*\)", message)
        assert "`hf download monology/pile-uncopyrighted --repo-type dataset --include 'train/*.jsonl.zst'" in message
        assert "then set data.source=DIR/train." in message
    else:
        assert "does not exist" in message
        assert re.search(
            r"`hf download segyges/OpenWebText2 |Skylion007/openwebtext|/wikitext-103-raw-v1\.zip", message
        )
        assert re.search(r"then set data\.source=DIR", message)
    tokenizer = (
        "`hf download EleutherAI/gpt-neox-20b tokenizer.json --local-dir FOLDER`; then set data.tokenizer=FOLDER"
    )
    assert (tokenizer in message) == (load_schedule(schedule).data.tokenizer is not None)


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (401, r"the server answered 401 Unauthorized; .* a token in HF_TOKEN"),
        (403, r"the server answered 403 Forbidden; .* a token in HF_TOKEN"),
        (503, r"the server answered 503 Service Unavailable"),
    ],
)
def test_a_hub_that_rejects_requests_gives_one_message_for_sources_and_tokenizers(
    tmp_path: Path, failure: int, said: str
) -> None:
    with hub(failure) as refusing:
        environment = refusing.environment(tmp_path / "home")
        for values in ((f"data.source={SOURCE}",), GIVEN):
            message = fails(tmp_path / "runs", environment, "prepare", "quickstart", *values)
            assert re.search(said, message), message
            assert "`hf download owner/" in message
            assert not (tmp_path / "runs").exists()
    assert refusing.requests


@pytest.mark.parametrize(
    ("failure", "said"), [("cut", "closed connection|disconnected|incomplete"), ("stall", "timed out")]
)
@pytest.mark.parametrize("command", ["run", "prepare"])
def test_a_hub_that_fails_in_the_middle_of_a_file_leaves_nothing_of_the_dataset(
    tmp_path: Path, failure: str, said: str, command: str
) -> None:
    with hub(failure) as failing:
        environment = failing.environment(tmp_path / "home")
        overrides = (f"data.source={SOURCE}", *(START if command == "run" else ()))
        message = fails(tmp_path / "runs", environment, command, "quickstart", *overrides)
    assert re.search(rf"data\.source: datasets/owner/texts/train/a\.jsonl cannot be read \(.*({said})", message), (
        message
    )
    assert "then set data.source=DIR/train" in message


def test_the_message_names_offline_mode(tmp_path: Path) -> None:
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
    for values in ((f"data.source={SOURCE}",), GIVEN):
        message = fails(tmp_path / "runs", environment, "prepare", "quickstart", *values)
        assert re.search("offline|disabled", message), message


def test_a_working_hub_is_read(tmp_path: Path) -> None:
    """Shows that the tests above fail for the reason in their messages."""
    with hub() as healthy:
        command = growctl("prepare", "quickstart", f"data.source={SOURCE}", "data.vocab_size=300")
        done = subprocess.run(
            [*command, "--runs-dir", tmp_path / "runs"],
            env=healthy.environment(tmp_path / "home"),
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
        )
    assert done.returncode == 0, done.stderr
    assert "documents" in done.stdout
