"""`growctl verify --integrity` on a dataset, a ledger, a run and a runs directory, without training."""

import json
import shutil
from pathlib import Path

import pytest

from growctl.ladder.load import load_schedule
from growctl.ledger.ledger import Ledger
from growctl.run.requests import schedule_yaml
from growctl.runs.verify import CheckedFile, check, find_targets
from stages.corpus.prepared import Ingredient, write_mixture
from stages.data.remote import CACHE_NAME
from tests.growctl.runs import run_here, write_schedule
from tests.stages.checkpoints import write_checkpoint
from tests.stages.data.test_dataset import write_dataset


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A runs directory after a run, with one checkpoint set aside and one unfinished."""
    runs = tmp_path / "runs"
    write_dataset(runs / ".datasets/text-0123", [40, 10], [20])
    stage = runs / "tiny/stages/0-small"
    for name in ("final", "step_00000010", "broken-step_00000020"):
        write_checkpoint(stage / name)
    (stage / ".step_00000030.incomplete").mkdir()
    (stage / "metrics.jsonl").touch()
    Ledger(runs / "tiny/ledger.db").close()
    (runs / "tiny/schedule.yaml").write_text(schedule_yaml(load_schedule(str(write_schedule(tmp_path)))))
    return runs


def found(path: Path) -> dict[str, CheckedFile]:
    return {target.path.name: check(target) for target in find_targets(path)}


def test_everything_below_a_runs_directory_is_checked_and_named(runs):
    (runs / ".datasets" / CACHE_NAME / "3f").mkdir(parents=True)  # the cache of remote tokens is no dataset
    results = found(runs)
    assert {name: (result.kind, result.whole) for name, result in results.items()} == {
        "text-0123": ("dataset", True),
        "schedule.yaml": ("schedule", True),
        "ledger.db": ("ledger", True),
        "final": ("checkpoint", True),
        "step_00000010": ("checkpoint", True),
        "broken-step_00000020": ("set aside", None),
        ".step_00000030.incomplete": ("unfinished", None),
    }
    assert "set aside (broken, and moved here), not checked" in results["broken-step_00000020"].line()
    assert found(runs / "tiny").keys() == results.keys() - {"text-0123"}
    assert found(runs / ".datasets").keys() == found(runs / ".datasets/text-0123").keys() == {"text-0123"}
    assert found(runs / "tiny/ledger.db").keys() == {"ledger.db"}
    assert found(runs / "tiny/stages/0-small/broken-step_00000020")["broken-step_00000020"].whole, "asked for by name"


@pytest.mark.parametrize(
    ("victim", "owner"),
    [
        (".datasets/text-0123/tokenizer.json", "text-0123"),
        ("tiny/ledger.db", "ledger.db"),
        ("tiny/schedule.yaml", "schedule.yaml"),
        ("tiny/stages/0-small/step_00000010/manifest.json", "step_00000010"),
    ],
)
def test_only_the_damaged_target_is_reported(runs, victim, owner):
    (runs / victim).write_bytes(b"\0" * 100)
    broken = {name: result for name, result in found(runs).items() if result.whole is False}
    assert list(broken) == [owner]
    assert str(runs / victim).rpartition(f"/{owner}")[0] in broken[owner].line()


def test_the_command_prints_one_line_per_target_and_exits_with_1_on_damage(runs):
    out, err = run_here("verify", "--integrity", runs)
    assert (err, len(out.splitlines()), out.count(": OK, ")) == ("", 7, 5)
    (runs / "tiny/stages/0-small/final/parameters/embedding.weight.safetensors").write_bytes(b"\0" * 100)
    out, _ = run_here("verify", "--integrity", runs / "tiny", "--json", expect=1)
    told = {Path(entry["path"]).name: entry["whole"] for entry in json.loads(out)["integrity"]}
    whole = dict.fromkeys(("schedule.yaml", "ledger.db", "step_00000010"), True)
    unchecked = dict.fromkeys(("broken-step_00000020", ".step_00000030.incomplete"))
    assert told == whole | unchecked | {"final": False}


def test_a_mixture_is_checked_with_its_sources(runs, tmp_path):
    elsewhere = write_dataset(tmp_path / "elsewhere", [40], [20])
    sources = [Ingredient("a", runs / ".datasets/text-0123", 1.0), Ingredient("b", elsewhere, 1.0)]
    mixture = write_mixture(sources, runs / ".datasets")
    whole = found(runs / ".datasets")
    assert whole.keys() == {mixture.name, "text-0123"}
    assert whole[mixture.name].whole
    (elsewhere / "train/00000.ds").write_bytes(b"x" * 160)
    assert f"{elsewhere} is damaged" in found(runs)[mixture.name].line()
    shutil.rmtree(elsewhere)
    assert f"{mixture}: {elsewhere} is not a dataset" in found(mixture)[mixture.name].line()
