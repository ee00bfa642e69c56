"""A dataset prepared by SLURM jobs or on a Ray cluster is the one that this machine prepares."""

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from growctl.ladder.load import load_schedule
from growctl.launch.prepare import JOBS, TaskPart, error_file, execute_on
from stages.corpus import corpus as corpus_module
from stages.corpus.prepare import prepare
from stages.data.dataset import read_dataset_manifest
from stages.data.errors import DataError


@pytest.fixture
def values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Overrides for sixty documents, which make several shards."""
    monkeypatch.setattr(corpus_module, "SHARD_BYTES", 400)
    source = tmp_path / "texts"
    source.mkdir()
    for number in range(60):
        (source / f"{number:02d}.txt").write_text(f"the text of document {number}")
    settings = ("data.vocab_size=300", "data.validation_fraction=0.2", "data.shuffle_seed=3", "data.workers=2")
    return [f"data.source={source}", *settings]


def prepared(values: list[str], place: Path, executor: str) -> str:
    """The fingerprint of the dataset that `executor` prepares."""
    loaded = load_schedule("quickstart", values)
    execute = execute_on(executor, loaded, place, place / "log", print)  # type: ignore[arg-type]
    return read_dataset_manifest(prepare(loaded.data, place, execute=execute)).fingerprint


def check(executor: str, values: list[str], tmp_path: Path) -> None:
    """Checks the dataset, and then the error for a text that is not UTF-8. Gives a tokenizer: training one would meet
    that text first."""
    assert prepared(values, tmp_path / "far", executor) == prepared(values, tmp_path / "here", "local")
    assert not list((tmp_path / "far").glob(f"**/{JOBS}")), "the dataset holds no scripts and logs"
    (tmp_path / "texts/07.txt").write_bytes("café".encode("latin-1"))
    tokenizer = next((tmp_path / "here").glob("*/tokenizer.json"))
    values = [value for value in values if "vocab_size" not in value]
    known = f"data.tokenizer={tokenizer}", "data.vocab_size=null", "model.vocab_size=300"
    with pytest.raises(DataError, match=r"data\.source: .*/07\.txt line 1 is not UTF-8"):
        prepared([*values, *known], tmp_path / "far", executor)
    assert not list((tmp_path / "far").glob(".*.incomplete"))


@pytest.mark.slow
def test_slurm_jobs_prepare_the_same_dataset_and_report_errors(values: list[str], slurm: Path, tmp_path: Path) -> None:
    check("slurm", values, tmp_path)
    first = json.loads((slurm / "101_0/options.json").read_text())
    assert (first["array"], first["nodes"], "gpus-per-node" in first) == ("0-1%2", "1", False)


@pytest.mark.slow
def test_ray_uses_all_workers_and_reports_errors(values: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    parts: list[list[int]] = []

    def remote(run: Any) -> Any:
        def start(part: TaskPart) -> None:
            parts.append(part.numbers)
            with suppress(DataError):  # as Ray: the error stays with the result
                run(part)

        return SimpleNamespace(remote=start)

    ray = SimpleNamespace(
        is_initialized=lambda: True,
        remote=lambda num_cpus: remote,
        wait=lambda running, num_returns, timeout: (running, []),
        shutdown=lambda: None,
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    check("ray", values, tmp_path)
    assert max(map(len, parts)) > 1, "two workers share the shards"


@pytest.mark.slow
def test_a_ray_cluster_prepares_the_same_dataset(values: list[str], tmp_path: Path) -> None:
    pytest.importorskip("ray")
    check("ray", values, tmp_path)


def test_the_error_of_a_task_appears_with_its_whole_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command looks for error files all the time, and reports what is in them."""

    def fail(number: int, meter: object) -> None:
        raise DataError("not UTF-8")

    def full_disk(*_: object) -> None:
        assert not error_file(tasks, 3).exists(), "before the message is in it"
        raise OSError("full")

    tasks: Any = SimpleNamespace(directory=tmp_path, record=lambda number: None, run=fail)
    (tmp_path / JOBS).mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", lambda path, _: full_disk(path.touch()))
        patched.setattr(os, "replace", full_disk)
        with pytest.raises(OSError, match="full"):
            TaskPart(tasks, [3], 1)()
    with pytest.raises(DataError):
        TaskPart(tasks, [3], 1)()
    assert error_file(tasks, 3).read_text() == "not UTF-8"
