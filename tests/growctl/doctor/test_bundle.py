"""`growctl doctor --bundle` writes one zip for a bug report, without secrets, weights, keys or text of datasets."""

import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
import yaml

from growctl.cli import machine as commands
from growctl.doctor import bundle, diagnosis, imports, run_texts
from growctl.doctor.check import Check
from growctl.redaction import REMOVED, Redaction
from model.errors import UserError
from tests.growctl.invented_runs import FakeRun, stage_of

SECRETS = (
    "hf_abcdefghijklmn",
    "pa55word",
    "/ada",
    "of ada",
    "ada:",
    "swordfish",
    "private prompt",
    "text of the dataset",
    "signing key",
    "generated text",
    "open sesame",
)

STAMP = "2026-01-31T09:30:00Z"
JOB_LOG = f"""{STAMP} stage a writes:
    private prompt and a generated text
    an indented generated text

    generated text
{STAMP} no text after 'private prompt': the generated token is open
{STAMP} stage b writes:
    private prompt
srun: error
"""


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A runs directory with one run, whose files hold what a bundle must not."""
    runs = tmp_path / "runs"
    FakeRun(runs, "ladder", [stage_of("a", 1000, 10)]).train(0, 3.0)
    run, stage = runs / "ladder", runs / "ladder/stages/0-a"
    schedule = {
        "data": {"source": "s3://ada:pa55word@bucket/books?sig=swordfish"},
        "samples": {"prompts": ["private prompt"]},
        "launch": {
            "environment": {"MY_SETTING": "open sesame", "SWITCH": "true", "NCCL_DEBUG": "INFO"},
            "slurm": {"setup": ["export HF_TOKEN=swordfish"]},
        },
    }
    contents = {
        run / "schedule.yaml": yaml.safe_dump(schedule),
        stage / "metrics.jsonl": '{"event": "train", "step": 1, "tokens_seen": 40960}\n' * 2000,
        stage / "log.txt": "line\n" * 50_000 + "open sesame, reading /home/ada/books with hf_abcdefghijklmn\n",
        stage / "samples.json": "text of the dataset",
        stage / "final/manifest.json": '{"kind": "parameters", "lineage": "/home/ada/runs"}',
        stage / "final/tokenizer.json": "text of the dataset",
        stage / "final/parameters/head.safetensors": "text of the dataset",
        stage / "release/metrics.jsonl": '{"event": "end"}\n',
        run / "slurm/1234_0_log.out": JOB_LOG,
        runs / ".datasets/data/train.bin": "text of the dataset",
        runs / ".keys": "signing key",
    }
    contents |= {runs / f".bugs/growctl-2026010{day}T000000Z-x.txt": f"Traceback {day} of ada\n" for day in range(1, 9)}
    for path, text in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return runs


@pytest.fixture(autouse=True)
def quick_doctor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A doctor whose checks take no time, on the machine of a user called ada with secrets in the environment."""
    monkeypatch.setattr(imports, "check_imports", lambda: Check("imports", "ok", "from /home/ada/growctl"))
    monkeypatch.setattr(
        diagnosis, "diagnose", lambda *_: iter([Check("disk", "warning", "slow at /home/ada", "ask swordfish")])
    )
    for name, value in {"USER": "ada", "HOME": "/home/ada", "DB_PASSWORD": "swordfish", "OMP_NUM_THREADS": "3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)


def texts_in(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_a_bundle_holds_results_versions_tracebacks_and_the_named_run(runs: Path, capsys) -> None:
    commands.doctor(runs, "1", True, "bug.zip", ["ladder"], False)
    texts = texts_in(Path("bug.zip"))
    stage = "runs/ladder/stages/0-a"
    assert list(texts) == [
        *("README.txt", "doctor.txt", "doctor.json", "versions.txt", "platform.json", "variables.json"),
        *(f"bugs/growctl-2026010{day}T000000Z-x.txt" for day in range(4, 9)),
        *("runs/ladder/schedule.yaml", "runs/ladder/ledger.json", "runs/ladder/slurm/1234_0_log.out"),
        *(f"{stage}/metrics.jsonl", f"{stage}/log.txt", f"{stage}/final/manifest.json"),
        f"{stage}/release/metrics.jsonl",
    ]
    assert "warning  disk" in texts["doctor.txt"]
    assert json.loads(texts["doctor.json"])["checks"][1]["found"] == "slow at ~"
    assert "pydantic==" in texts["versions.txt"]
    assert json.loads(texts["variables.json"])["OMP_NUM_THREADS"] == "3"
    assert set(json.loads(texts["variables.json"])) <= set(bundle.ALLOWED_VARIABLES)
    assert [row["name"] for row in json.loads(texts["runs/ladder/ledger.json"])["stage"]] == ["a"]
    printed = capsys.readouterr().out
    assert all(f"  {name}\n" in printed for name in texts)
    assert "Look through it before you send it" in printed
    assert "Look through it before you send it" in texts["README.txt"]


def test_a_bundle_holds_no_secret_no_user_and_no_text_of_datasets(runs: Path) -> None:
    commands.doctor(runs, "1", True, "bug.zip", ["ladder"], False)
    for name, text in texts_in(Path("bug.zip")).items():
        for secret in SECRETS:
            assert secret not in text.replace("text of a dataset", ""), (name, secret)
    schedule = yaml.safe_load(texts_in(Path("bug.zip"))["runs/ladder/schedule.yaml"])
    assert schedule["launch"]["environment"] == dict.fromkeys(("MY_SETTING", "SWITCH", "NCCL_DEBUG"), REMOVED)
    assert schedule["data"]["source"] == f"s3://{REMOVED}@bucket/books?{REMOVED}"


def test_the_log_of_a_job_is_bundled_without_the_texts_that_models_wrote() -> None:
    assert run_texts.without_samples(JOB_LOG) == (
        f"{STAMP} stage a writes: {REMOVED}\n"
        f"{STAMP} no text after {REMOVED}: the generated token is open\n"
        f"{STAMP} stage b writes: {REMOVED}\n"
        "srun: error\n"
    )
    end = JOB_LOG.partition("\n")[2]
    assert "generated text" not in run_texts.without_samples(f"[the last 99 of 999 bytes]\n{end}")


def test_only_the_ends_of_metrics_and_logs_are_in_a_bundle(runs: Path) -> None:
    texts = run_texts.texts_of_runs(runs, ["ladder"])
    log, metrics = texts["runs/ladder/stages/0-a/log.txt"], texts["runs/ladder/stages/0-a/metrics.jsonl"]
    assert len(log) < run_texts.TAIL_BYTES + 100
    assert log.startswith(f"[the last {run_texts.TAIL_BYTES} of ")
    assert log.splitlines()[1] == "line"
    assert log.endswith("hf_abcdefghijklmn\n")
    assert all(json.loads(line) for line in metrics.splitlines()[1:])


def test_a_broken_run_is_bundled_as_far_as_it_can_be_read(runs: Path) -> None:
    (runs / "ladder/ledger.db").write_text("no database" * 100)
    (runs / "ladder/schedule.yaml").write_text("launch: {environment: {A: swordfish\n")
    (runs / "ladder/stages/0-a/log.txt").write_bytes(b"\xff\xfe half a line")
    texts = run_texts.texts_of_runs(runs, ["ladder"])
    assert "file is not a database" in texts["runs/ladder/ledger.json"]
    assert texts["runs/ladder/schedule.yaml"] == "left out, because it could not be read: ParserError\n"
    assert texts["runs/ladder/stages/0-a/log.txt"] == "\\xff\\xfe half a line"


def test_without_a_name_the_file_is_called_by_the_time(tmp_path: Path, capsys) -> None:
    commands.doctor(tmp_path / "runs", "1", True, None, None, True)
    document = json.loads(capsys.readouterr().out)
    [written] = tmp_path.glob("growctl-bundle-*.zip")
    assert document["bundle"]["file"] == written.name
    assert document["bundle"]["contents"] == list(texts_in(written))
    assert len(document["checks"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((True, "old.zip", None), "old.zip: exists already, and doctor replaces no file; name another, or remove it"),
        ((True, "bug.tar", None), "bug.tar: a bundle ends in .zip; write bug.tar.zip"),
        ((True, "none/bug.zip", None), "none/bug.zip: there is no folder none; create it first"),
        ((False, "bug.zip", None), "'bug.zip': goes with --bundle only"),
        ((False, None, ["ladder"]), "--run 'ladder': goes with --bundle only"),
    ],
)
def test_unusable_input_is_one_message_and_nothing_is_written(
    arguments: tuple[bool, str | None, list[str] | None], message: str, tmp_path: Path, capsys
) -> None:
    (tmp_path / "old.zip").write_text("old")
    with pytest.raises(typer.Exit) as ended:
        commands.doctor(tmp_path, "1", *arguments)
    assert ended.value.exit_code == 2
    assert capsys.readouterr() == ("", f"growctl: {message}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["old.zip"]
    assert (tmp_path / "old.zip").read_text() == "old"


def test_an_unknown_run_is_one_message_before_any_check(runs: Path, capsys) -> None:
    with pytest.raises(UserError, match=r"--run 'lader': no such run in .*; did you mean 'ladder'\?"):
        commands.doctor(runs, "1", True, "bug.zip", ["lader"], False)
    assert capsys.readouterr().out == ""
    assert not Path("bug.zip").exists()


def test_a_disk_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch, capsys) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(typer.Exit) as ended:
        commands.doctor(tmp_path / "runs", "1", True, "bug.zip", None, False)
    assert ended.value.exit_code == 1
    assert capsys.readouterr().err == "growctl: bug.zip: could not be written: No space left on device\n"
    assert list(tmp_path.iterdir()) == []


def test_names_in_a_bundle_are_redacted_too(tmp_path: Path) -> None:
    names = bundle.write_bundle(tmp_path / "b.zip", {"runs/ada/log.txt": ""}, Redaction(users=("ada",)))
    assert names == ["README.txt", f"runs/{REMOVED}/log.txt"]


def test_names_that_become_equal_are_numbered(tmp_path: Path) -> None:
    texts = {"runs/ada/log.txt": "1", "runs/eve/log.txt": "2", "runs/bob/log.txt": "3"}
    names = bundle.write_bundle(tmp_path / "b.zip", texts, Redaction(users=("ada", "eve", "bob")))
    assert names[1:] == [f"runs/{REMOVED}/log.txt", f"runs/{REMOVED}/log-2.txt", f"runs/{REMOVED}/log-3.txt"]
    assert list(texts_in(tmp_path / "b.zip").values())[1:] == ["1", "2", "3"]


def test_a_file_that_appears_during_the_checks_is_kept(tmp_path: Path, monkeypatch, capsys) -> None:
    def slow(*_: object) -> Iterator[Check]:
        (tmp_path / "bug.zip").write_text("of another")
        yield Check("disk", "ok", "fast")

    monkeypatch.setattr(diagnosis, "diagnose", slow)
    with pytest.raises(typer.Exit) as ended:
        commands.doctor(tmp_path / "runs", "1", True, "bug.zip", None, True)
    assert ended.value.exit_code == 2
    assert "growctl: bug.zip: exists already, and doctor replaces no file; " in capsys.readouterr().err
    assert (tmp_path / "bug.zip").read_text() == "of another"


def test_json_in_a_bundle_stays_json(tmp_path: Path) -> None:
    texts = {"a.json": '{"pad_token": "</s>", "log": "password: x y"}\n', "b.jsonl": '[cut]\n{"log": "Cookie: x"}\n'}
    bundle.write_bundle(tmp_path / "b.zip", texts, Redaction())
    written = texts_in(tmp_path / "b.zip")
    assert json.loads(written["a.json"]) == {"pad_token": REMOVED, "log": f"password: {REMOVED}"}
    assert written["b.jsonl"] == f'[cut]\n{{"log": "Cookie: {REMOVED}"}}\n'


def test_a_shadowed_installation_can_still_be_bundled(runs: Path, monkeypatch) -> None:
    monkeypatch.setattr(imports, "check_imports", lambda: Check("imports", "failed", "another stages", "rename it"))
    with pytest.raises(typer.Exit) as ended:
        commands.doctor(runs, "1", True, "bug.zip", None, False)
    assert ended.value.exit_code == 1
    assert "another stages" in texts_in(Path("bug.zip"))["doctor.txt"]
