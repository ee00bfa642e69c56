"""`growctl verify`: output, evaluation text, and exit codes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from growctl.cli.app import app
from stages.checkpoint.manifest import read_manifest
from stages.grow.expand import expand, expand_transformer
from tests.growctl.text.schemas import assert_printed_as_documented
from tests.stages.grow.test_compare import TRANSFORMER, alter, prepare_text, rewrite, write_trained

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
def call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., str]:
    """Runs growctl within this process in an empty folder, asserts the exit code `expect` and returns the output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("GROWCTL_RUNS_DIR", raising=False)

    def invoke(*arguments: object, expect: int = 0) -> str:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert (result.exit_code, result.stderr) == (expect, "")
        if "--json" in arguments:
            assert_printed_as_documented([str(argument) for argument in arguments], result.stdout)
        return result.stdout

    return invoke


def compared(text: str) -> dict[str, Any]:
    """The comparison of a strict JSON document."""
    return json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON"))["comparison"]


def test_a_kept_promise_exits_with_0_and_a_broken_one_with_1(old, new, call):
    lines = call("verify", old, new, *FEW).splitlines()
    assert max(len(line) for line in lines if str(old.parent) not in line) <= 80
    words = " ".join(" ".join(lines).split())
    assert "NEW was made from OLD by expand (init matched, tau ramp); 23 of OLD's" in words
    assert f"OLD {old} (6.75k parameters) NEW {new} (9.06k parameters)" in words
    assert "preserved: the largest difference is" in words
    alter(new, "embedding.weight", lambda value: value * 1.01)
    told = compared(call("verify", old, new, *FEW, "--json", expect=1))
    assert (told["verdict"], told["breaks_promise"], told["lineage"]["growth"]["preserves"]) == ("changed", True, True)


def test_a_broken_file_is_named_and_exits_with_1(old, new, call):
    whole = json.loads(call("verify", "--integrity", old, new, *FEW, "--json"))
    assert [entry["whole"] for entry in whole["integrity"]] == [True, True]
    told = whole["comparison"]
    assert (told["verdict"], told["num_sequences"], told["context"]) == ("preserved", 2, 16)
    assert (told["old"]["path"], told["lineage"]["growth"]["policy"]["init"]) == (str(old), "matched")
    files = read_manifest(old).files
    num_bytes = sum((old / name).stat().st_size for name in files)
    victim = new / "parameters/blocks.0.ffn.key_tokens.1.safetensors"
    data = bytearray(victim.read_bytes())
    data[-9] ^= 4
    victim.write_bytes(data)
    assert call("verify", "--integrity", old, new, expect=1).splitlines() == [
        f"{old}: OK, {len(files)} files, {num_bytes:,} bytes",
        f"{new} is broken: parameters/blocks.0.ffn.key_tokens.1.safetensors does not have the hash in the manifest",
    ]
    victim.unlink()
    [told] = json.loads(call("verify", "--integrity", new, "--json", expect=1))["integrity"]
    assert (told["whole"], "ffn.key_tokens.1.safetensors is missing" in told["problem"]) == (False, True)


def test_integrity_covers_engine_checkpoints_and_damaged_manifests(old, call):
    with pytest.raises(ValueError, match="give NEW too, or --integrity"):
        call("verify", old)
    rewrite(old, kind="engine")
    assert ": OK, " in call("verify", "--integrity", old)
    with pytest.raises(ValueError, match=r"Its files are pickles"):
        call("verify", old, old)
    (old / "manifest.json").write_text("{")
    assert "manifest.json cannot be read" in call("verify", "--integrity", old, expect=1)
    with pytest.raises(ValueError, match="nowhere does not exist"):
        call("verify", "--integrity", old.with_name("nowhere"))


def test_the_screen_says_how_a_transformer_grew(old, dataset, call):
    small = write_trained(old.with_name("small"), dataset, TRANSFORMER)
    deep = old.with_name("deep")
    expand_transformer(small, deep, TRANSFORMER.model_copy(update={"num_layers": 4}))
    words = " ".join(call("verify", small, deep, *FEW).split())
    assert "NEW was made from OLD by expand (depth append); " in words


def test_the_text_comes_from_the_checkpoints_dataset_or_from_data(old, dataset, tmp_path, call, monkeypatch):
    assert compared(call("verify", old, old, *FEW, "--json"))["dataset"] == str(dataset)
    away = write_trained(tmp_path / "away", dataset)
    assert call("verify", away, away, *FEW, "--data", dataset)
    with pytest.raises(ValueError, match="is not a dataset"):
        call("verify", old, old, "--data", tmp_path)
    with pytest.raises(ValueError, match=r"there is no dataset with the fingerprint .*--data DIR"):
        call("verify", away, away)
    monkeypatch.setenv("GROWCTL_RUNS_DIR", str(dataset.parent.parent))
    assert call("verify", away, away, *FEW)
    monkeypatch.delenv("GROWCTL_RUNS_DIR")
    (tmp_path / "runs").symlink_to(dataset.parent.parent)
    assert call("verify", away, away, *FEW)


@pytest.mark.slow
def test_a_damaged_dataset_is_skipped(tmp_path, call):
    own = prepare_text(tmp_path / ".datasets")
    checkpoint = write_trained(tmp_path / "final", own)
    broken = own.rename(own.with_name(f"broken-{own.name}"))
    (broken / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="there is no dataset"):
        call("verify", checkpoint, checkpoint)
    whole = prepare_text(tmp_path / ".datasets")
    assert compared(call("verify", checkpoint, checkpoint, *FEW, "--json"))["dataset"] == str(whole)
