"""A control trains on its ladder's data, even if the source changed since, or it does not start."""

import shutil
from pathlib import Path

import pytest

from growctl.ledger.ledger import Ledger
from tests.growctl.ledger.records import RUN
from tests.growctl.runs import SCHEDULE, TEXT, run, write_schedule

pytestmark = pytest.mark.trains

CONTROL = "tiny-control-tokenformer-scratch"


def fingerprint(run_directory: Path) -> str:
    with Ledger(run_directory / "ledger.db", read_only=True) as ledger:
        return ledger.run().dataset_fingerprint


def test_a_control_reuses_its_ladders_data_after_the_source_changed_and_rejects_other_data(tmp_path):
    source, runs = tmp_path / "text", tmp_path / "runs"
    source.mkdir()
    for file in TEXT.glob("*.py"):
        shutil.copy(file, source)
    text = SCHEDULE.replace(str(TEXT), str(source)).replace("train_steps: 30", "train_steps: 6")
    text = "\n".join(line for line in text.splitlines() if "name: large" not in line)
    schedule = write_schedule(tmp_path, text + "\ncontrols: [{kind: tokenformer-scratch}]\n")
    run("run", schedule, "--runs-dir", runs, "--no-controls")
    (source / "new.py").write_text("print('other words than before')\n" * 500)
    trained_on = fingerprint(runs / "tiny")
    (runs / "tiny/ledger.db").unlink()
    run("run", schedule, "--runs-dir", runs, "--controls")
    assert fingerprint(runs / "tiny") == trained_on, "a new ledger has the data that the run was trained on"
    assert fingerprint(runs / CONTROL) == fingerprint(runs / "tiny")
    assert len(list((runs / ".datasets").glob("*/manifest.json"))) == 1

    (runs / "tiny").rename(tmp_path / "kept")
    (runs / CONTROL / "ledger.db").write_bytes(b"torn")
    _, err = run("run", schedule, "--runs-dir", runs, expect=2)
    assert f"{CONTROL} was trained on other data" in err, "the ladder is new, the control's checkpoints tell"
    assert not list(runs.glob("tiny/stages/*"))
    shutil.rmtree(runs / "tiny")
    (tmp_path / "kept").rename(runs / "tiny")

    (runs / CONTROL / "ledger.db").unlink()
    with Ledger(runs / CONTROL / "ledger.db") as ledger:
        ledger.record_run(RUN, [])
    before = sorted(runs.rglob("*"))
    _, err = run("run", schedule, "--runs-dir", runs, expect=2)
    assert f"{CONTROL} was trained on other data (fingerprint f00d...) than its ladder" in " ".join(err.split())
    assert sorted(runs.rglob("*")) == before
