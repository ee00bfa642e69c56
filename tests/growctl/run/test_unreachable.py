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
from tests.growctl.schedules import NEEDS_A_RUN
from tests.workers import REPOSITORY

SOURCE = "hf://datasets/owner/texts/train"
START = ("checkpoint.check_space=false", "launch.devices=1")  # `run` checks the disk and the devices first
PREPARE = ["prepare", "quickstart", f"data.source={SOURCE}"]
TOKENIZER = ["prepare", "quickstart", "data.vocab_size=null", "model.vocab_size=50304", "data.tokenizer=owner/model"]

pytestmark = pytest.mark.slow


def messages(runs: Path, environment: dict[str, str], *commands: Sequence[object]) -> list[str]:
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


def test_every_shipped_schedule_names_the_download_if_the_hub_is_unreachable(tmp_path: Path) -> None:
    with hub() as closed:
        environment = closed.environment(tmp_path / "home")
    shipped = {name: load_schedule(name).data for name in shipped_schedules() if name not in NEEDS_A_RUN}
    names = {data.source: name for name, data in shipped.items() if not data.images}  # one for each source
    del names[PYTHON_STDLIB]
    commands = [*(["prepare", name] for name in names.values()), ["run", "wikitext", *START]]
    said = messages(tmp_path / "runs", environment, *commands)
    assert not (tmp_path / "runs").exists()
    assert names
    for source, message in zip([*names, load_schedule("wikitext").data.source], said, strict=True):
        assert message.startswith(f"growctl: data.source: {source!r} ")
        if source.startswith("hf://"):
            assert re.search(r"cannot be read \(.*refused.*\)", message)
            download = "hf download monology/pile-uncopyrighted --repo-type dataset --include 'train/*.jsonl.zst'"
            assert f"`{download}" in message
            assert "then set data.source=DIR/train" in message
        else:
            assert "does not exist" in message


@pytest.mark.parametrize(
    ("failure", "said"),
    [(401, r"the server answered 401 Unauthorized; .* a token in HF_TOKEN"), ("offline", "offline|disabled")],
)
def test_a_hub_that_rejects_requests_gives_one_message(tmp_path: Path, failure: int | str, said: str) -> None:
    with hub(failure) as refusing:
        environment = refusing.environment(tmp_path / "home")
        if failure == "offline":
            environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
        for message in messages(tmp_path / "runs", environment, PREPARE, TOKENIZER):
            assert re.search(said, message), message
            assert "`hf download owner/" in message
    assert not (tmp_path / "runs").exists()
    assert bool(refusing.requests) == (failure != "offline")


def test_a_hub_that_fails_in_the_middle_of_a_file_leaves_nothing_of_the_dataset(tmp_path: Path) -> None:
    commands = [["run", "quickstart", f"data.source={SOURCE}", *START], PREPARE]
    with hub("cut") as failing:
        for message in messages(tmp_path / "runs", failing.environment(tmp_path / "home"), *commands):
            assert "data.source: datasets/owner/texts/train/a.jsonl cannot be read (" in message
            assert re.search("closed connection|disconnected|incomplete", message)
            assert "then set data.source=DIR/train" in message
