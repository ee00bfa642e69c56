"""Only signed engine checkpoints are loaded: signatures, keys, and pickles that would run code."""

import os
import stat
import threading
from pathlib import Path

import pytest
import torch

from stages.checkpoint.directory import finish_directory, whole_directory
from stages.checkpoint.files import list_files
from stages.checkpoint.lineage import Lineage
from stages.checkpoint.manifest import CheckpointError, Manifest, read_manifest
from stages.checkpoint.signatures import OriginError, check_keys, check_origin, check_pickles, sign
from stages.engine import engine_state
from stages.engine.engine_state import load_engine
from tests.stages.checkpoints import small_config


class Payload:
    """Loading a pickle of it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def write_engine(directory: Path, keys: Path | None, content: object) -> Manifest:
    """A minimal engine checkpoint of one rank."""
    with whole_directory(directory) as staging:
        (staging / "engine").mkdir()
        torch.save(content, staging / "engine/mp_rank_00_model_states.pt")
        manifest = Manifest(
            kind="engine",
            model=small_config(),
            step=3,
            group_steps={},
            samples_seen=12,
            seed=0,
            dataset_fingerprint=None,
            tokenizer_sha256=None,
            world_size=1,
            zero_stage=1,
            files=list_files(staging),
            lineage=Lineage(operation="train"),
        )
        return finish_directory(directory, manifest, (lambda seal: sign(seal, keys)) if keys else None)


def rejected(directory: Path, keys: Path) -> str:
    with pytest.raises(OriginError) as caught:
        check_origin(directory, read_manifest(directory), keys)
    assert "pickles, which can run any code" in str(caught.value)
    return str(caught.value)


def test_only_checkpoints_signed_by_this_runs_directory_are_accepted(tmp_path):
    ours, theirs = tmp_path / "ours/.keys", tmp_path / "theirs/.keys"
    for keys in (ours, theirs):
        keys.parent.mkdir()
        check_origin(Path("x"), write_engine(keys.parent / "step_00000010", keys, {}), keys)
    said = rejected(theirs.parent / "step_00000010", ours)
    assert f"was not saved by a run in {ours.parent}" in said
    assert f"append the line of .keys in the runs directory that saved it to {ours}" in said
    with ours.open("a") as file:
        file.write(theirs.read_text())
    check_origin(theirs.parent, read_manifest(theirs.parent / "step_00000010"), ours)
    check_origin(ours.parent, read_manifest(ours.parent / "step_00000010"), ours)
    write_engine(tmp_path / "after", ours, {})
    assert "was not saved by a run in" in rejected(tmp_path / "after", theirs), "the first line signs"


def test_a_checkpoint_is_rejected_without_a_signature_or_without_keys(tmp_path):
    keys = tmp_path / ".keys"
    write_engine(tmp_path / "unsigned", None, {})
    write_engine(tmp_path / "signed", keys, {})
    assert "is not signed" in rejected(tmp_path / "unsigned", keys)
    keys.unlink()
    assert "was not saved by a run in" in rejected(tmp_path / "signed", keys)
    assert not keys.exists(), "looking makes none"


def test_a_signature_is_not_valid_for_other_content(tmp_path):
    keys = tmp_path / ".keys"
    good = write_engine(tmp_path / "good", keys, {})
    bad = write_engine(tmp_path / "bad", None, {"other": 1})
    (tmp_path / "bad/manifest.json").write_text(bad.model_copy(update={"signature": good.signature}).model_dump_json())
    assert f"was not saved by a run in {tmp_path}" in rejected(tmp_path / "bad", keys)


def test_concurrent_processes_create_the_keys_once_and_only_their_owner_can_read_them(tmp_path):
    keys, made = tmp_path / ".keys", []
    threads = [threading.Thread(target=lambda: made.append(sign("0" * 64, keys))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8
    assert len(set(made)) == 1
    assert stat.S_IMODE(keys.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == [".keys"]


@pytest.mark.parametrize(("text", "message"), [("", "has no key"), ("0" * 64 + "\nsecret\n", "key 2 is not 64")])
def test_invalid_keys_give_a_one_line_message(tmp_path, text, message):
    (tmp_path / ".keys").write_text(text)
    with pytest.raises(OriginError, match=message):
        sign("0" * 64, tmp_path / ".keys")
    with pytest.raises(OriginError, match=message):
        check_keys(tmp_path / ".keys")


def test_checking_the_keys_before_a_run_rejects_bad_ones_and_creates_none(tmp_path):
    check_keys(tmp_path / ".keys")
    assert not (tmp_path / ".keys").exists()


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_that_would_run_code_is_rejected_before_deepspeed_loads_it(tmp_path, monkeypatch, protocol):
    """Even if it is signed, with a stolen key or by a run itself."""
    monkeypatch.setattr(torch.serialization, "DEFAULT_PROTOCOL", protocol)
    keys, ran = tmp_path / ".keys", tmp_path / "ran"
    write_engine(tmp_path / "engine", keys, {"module": torch.zeros(2), "evil": Payload(ran)})
    for name, value in (("get_world_size", 1), ("get_rank", 0), ("barrier", None)):
        monkeypatch.setattr(engine_state.dist, name, lambda value=value: value)

    class Engine:
        def load_checkpoint(self, *_, **__):
            raise AssertionError("DeepSpeed was asked to load it")

    with pytest.raises(CheckpointError, match=r"cannot be loaded: engine/mp_rank_00_model_states\.pt"):
        load_engine(Engine(), tmp_path / "engine", keys)
    assert not ran.exists()
    torch.load(tmp_path / "engine/engine/mp_rank_00_model_states.pt", weights_only=False)
    assert ran.exists(), "the payload would have worked"
    write_engine(tmp_path / "stranger", keys, {})
    torch.save({}, tmp_path / "stranger/engine/zero_pp_rank_0_mp_rank_00_optim_states.pt")
    with pytest.raises(CheckpointError, match="is not in its manifest"):
        load_engine(Engine(), tmp_path / "stranger", keys)


def test_a_file_that_torch_cannot_check_is_rejected(tmp_path):
    (tmp_path / "a.pt").write_bytes(b"\x80\x02cposix\nsystem\n.")
    with pytest.raises(CheckpointError, match=r"a\.pt cannot be checked"):
        check_pickles(tmp_path, ["a.pt"])
