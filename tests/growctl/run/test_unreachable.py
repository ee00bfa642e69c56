"""Unreachable sources and tokenizers give one message and exit code 2, and leave no files behind."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from growctl.ladder.load import load_schedule
from growctl.schedule.files import shipped_schedules
from stages.corpus.location import PYTHON_STDLIB
from tests.growctl.fakes.hub import growctl, hub
from tests.workers import REPOSITORY

SOURCE = "hf://datasets/owner/texts/train"
GIVEN = ("data.vocab_size=null", "model.vocab_size=50304", "data.tokenizer=owner/model")
START = ("checkpoint.check_space=false", "launch.devices=1")
"""`run` checks the disk and the devices first."""

PREPARE_BOTH = (["prepare", "quickstart", f"data.source={SOURCE}"], ["prepare", "quickstart", *GIVEN])


def fails(runs: Path, environment: dict[str, str], *commands: Sequence[object]) -> list[str]:
    """The only message of each command; all must exit with code 2 and leave no dataset, run or temporary folder."""
    ended = growctl(environment, *((*command, "--runs-dir", runs) for command in commands))
    for code, out, err in ended:
        assert code == 2, out + err
        assert err.splitlines()[-1].startswith("growctl: data."), err
        assert "Traceback" not in err
    kept = {".datasets", ".datasets/log.txt"}
    left = [path.relative_to(runs).as_posix() for path in runs.rglob("*")]
    assert [name for name in left if name not in kept and not name.endswith(".lock")] == []
    return [err.splitlines()[-1] for _, _, err in ended]


@pytest.mark.slow
def test_every_shipped_schedule_names_the_download_if_the_hub_is_unreachable(tmp_path: Path) -> None:
    with hub() as closed:
        environment = closed.environment(tmp_path / "home")
    sources = {name: load_schedule(name).data for name in shipped_schedules()}
    commands = [["prepare", name] for name, data in sources.items() if data.source != PYTHON_STDLIB]
    commands.append(["run", "wikitext", *START])
    messages = fails(tmp_path / "runs", environment, *commands)
    assert not (tmp_path / "runs").exists()
    for (_, name, *_), message in zip(commands, messages, strict=True):
        source = sources[name].source
        assert message.startswith(f"growctl: data.source: {source!r} ")
        if source.startswith("hf://"):
            assert re.search(r"cannot be read \(.*refused.*\)", message)
            assert (
                "`hf download monology/pile-uncopyrighted --repo-type dataset --include 'train/*.jsonl.zst'" in message
            )
            assert "then set data.source=DIR/train" in message
        else:
            assert "does not exist" in message


@pytest.mark.slow
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
        for message in fails(tmp_path / "runs", environment, *PREPARE_BOTH):
            assert re.search(said, message), message
            assert "`hf download owner/" in message
    assert not (tmp_path / "runs").exists()
    assert refusing.requests


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        ("cut", "closed connection|disconnected|incomplete"),
        pytest.param("stall", "timed out", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_a_hub_that_fails_in_the_middle_of_a_file_leaves_nothing_of_the_dataset(
    tmp_path: Path, failure: str, said: str
) -> None:
    with hub(failure) as failing:
        commands = [["run", "quickstart", f"data.source={SOURCE}", *START], PREPARE_BOTH[0]]
        messages = fails(tmp_path / "runs", failing.environment(tmp_path / "home"), *commands)
    for message in messages:
        assert re.search(rf"data\.source: datasets/owner/texts/train/a\.jsonl cannot be read \(.*({said})", message), (
            message
        )
        assert "then set data.source=DIR/train" in message


@pytest.mark.slow
def test_the_message_names_offline_mode(tmp_path: Path) -> None:
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
    for message in fails(tmp_path / "runs", environment, *PREPARE_BOTH):
        assert re.search("offline|disabled", message), message


@pytest.mark.slow
def test_a_working_hub_is_read(tmp_path: Path) -> None:
    """Shows that the tests above fail for the reason in their messages."""
    with hub() as healthy:
        command = ["prepare", "quickstart", f"data.source={SOURCE}", "data.vocab_size=300"]
        [done] = growctl(healthy.environment(tmp_path / "home"), [*command, "--runs-dir", tmp_path / "runs"])
    assert done.code == 0, done.err
    assert "documents" in done.out
