"""`growctl verify`: output, evaluation text, and exit codes."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stages.checkpoint.manifest import read_manifest
from stages.grow.expand import expand
from tests.growctl.runs import run_here
from tests.stages.grow.test_compare import alter, prepare_text, rewrite, write_trained

FEW = ("--sequences", "2", "--context", "16")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared dataset in the datasets folder of a runs directory."""
    return prepare_text(tmp_path_factory.mktemp("runs") / ".datasets")


@pytest.fixture
def old(dataset: Path, tmp_path: Path) -> Path:
    """A checkpoint in the place where a run would save it: in the runs directory that has the dataset."""
    return write_trained(dataset.parent.parent / tmp_path.name / "final", dataset)


@pytest.fixture
def new(old: Path) -> Path:
    expand(old, old.with_name("new"), attention_tokens=6)
    return old.with_name("new")


@pytest.fixture
def call(tmp_path: Path) -> Callable[..., str]:
    """Runs growctl in an empty folder, asserts the exit code `expect` and returns what it printed."""

    def invoke(*arguments: object, expect: int = 0) -> str:
        return "".join(run_here("verify", *arguments, expect=expect, columns=80, cwd=tmp_path))

    return invoke


def compared(text: str) -> dict[str, Any]:
    """The comparison of a strict JSON document."""
    return json.loads(text)["comparison"]


@pytest.mark.slow
def test_a_kept_promise_exits_with_0_and_a_broken_one_with_1(old, new, call):
    words = " ".join(call(old, new, *FEW).split())
    assert "NEW was made from OLD by expand (init matched, tau ramp)" in words
    assert "preserved: the largest difference is" in words
    alter(new, "embedding.weight", lambda value: value * 1.01)
    told = compared(call(old, new, *FEW, "--json", expect=1))
    assert (told["verdict"], told["breaks_promise"], told["lineage"]["growth"]["preserves"]) == ("changed", True, True)


def test_a_broken_file_is_named_and_exits_with_1(old, new, call):
    whole = json.loads(call("--integrity", old, new, *FEW, "--json"))
    assert [entry["whole"] for entry in whole["integrity"]] == [True, True]
    told = whole["comparison"]
    assert (told["verdict"], told["num_sequences"], told["context"]) == ("preserved", 2, 16)
    assert (told["old"]["path"], told["lineage"]["growth"]["policy"]["init"]) == (str(old), "matched")
    victim = new / "parameters/blocks.0.ffn.key_tokens.1.safetensors"
    victim.write_bytes(victim.read_bytes()[:-9] + bytes(9))
    files = read_manifest(old).files
    num_bytes = sum((old / name).stat().st_size for name in files)
    assert call("--integrity", old, new, expect=1).splitlines() == [
        f"{old}: OK, {len(files)} files, {num_bytes:,} bytes",
        f"{new} is broken: parameters/blocks.0.ffn.key_tokens.1.safetensors does not have the hash in the manifest",
    ]


def test_integrity_covers_engine_checkpoints_and_damaged_manifests(old, call):
    rewrite(old, kind="engine")
    assert ": OK, " in call("--integrity", old)
    assert "Its files are pickles" in call(old, old, expect=2)
    (old / "manifest.json").write_text("{")
    assert "manifest.json cannot be read" in call("--integrity", old, expect=1)


def test_the_text_comes_from_the_checkpoints_dataset_or_from_data(old, dataset, tmp_path, call):
    assert compared(call(old, old, *FEW, "--json"))["dataset"] == str(dataset)
    away = write_trained(tmp_path / "away", dataset)
    assert call(away, away, *FEW, "--data", dataset)
    assert "there is no dataset with the fingerprint" in call(away, away, expect=2)
    (tmp_path / "runs").symlink_to(dataset.parent.parent)
    assert call(away, away, *FEW)


@pytest.mark.slow
def test_a_damaged_dataset_is_skipped(tmp_path, call):
    own = prepare_text(tmp_path / ".datasets")
    checkpoint = write_trained(tmp_path / "final", own)
    broken = shutil.copytree(own, own.with_name(f"a-broken-{own.name}"))
    (broken / "tokenizer.json").unlink()
    assert compared(call(checkpoint, checkpoint, *FEW, "--json"))["dataset"] == str(own)
    shutil.rmtree(own)
    assert "there is no dataset" in call(checkpoint, checkpoint, expect=2)
