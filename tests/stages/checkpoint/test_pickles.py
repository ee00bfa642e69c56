"""Engine checkpoints load only from their own runs directory, and no pickle that would run code is loaded."""

import io
import os
from pathlib import Path

import pytest
import torch

from stages.checkpoint.files import write_file
from stages.checkpoint.manifest import CheckpointError
from stages.checkpoint.pickles import check_origin, check_pickles
from stages.checkpoint.sealed import seal
from stages.engine import engine_state
from stages.engine.engine_state import load_engine
from tests.stages.checkpoints import write_checkpoint

PICKLE = "engine/mp_rank_00_model_states.pt"


class Payload:
    """Loading a pickle of it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def write_engine(directory: Path, content: object) -> None:
    """An engine checkpoint of one rank, which holds a pickle of `content`."""
    pickled = io.BytesIO()
    torch.save(content, pickled)
    manifest = write_checkpoint(directory, kind="engine", world_size=1, zero_stage=1)
    files = manifest.files | {PICKLE: write_file(directory / PICKLE, pickled.getvalue())}
    sealed = seal(manifest.model_copy(update={"files": files}))
    (directory / "manifest.json").write_text(sealed.model_dump_json())


def test_an_engine_checkpoint_loads_only_from_the_runs_directory_that_it_lies_in(tmp_path, monkeypatch):
    runs, step = tmp_path / "runs", tmp_path / "disk/run/step_00000010"
    step.mkdir(parents=True)
    runs.mkdir()
    with pytest.raises(CheckpointError, match=r"step_00000010 is an engine checkpoint outside .*runs.*pickles"):
        check_origin(step, runs)
    (runs / "run").symlink_to(step.parent)
    check_origin(runs / "run/step_00000010", runs)
    check_origin(step, tmp_path / "disk")
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    check_origin(tmp_path / "link/run/step_00000010", tmp_path / "disk")
    monkeypatch.chdir(tmp_path)
    check_origin(Path("disk/run/step_00000010"), tmp_path / "disk")


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_that_would_run_code_is_rejected_before_deepspeed_loads_it(tmp_path, monkeypatch, protocol):
    monkeypatch.setattr(torch.serialization, "DEFAULT_PROTOCOL", protocol)
    ran = tmp_path / "ran"
    write_engine(tmp_path / "engine", {"module": torch.zeros(2), "evil": Payload(ran)})
    for name, value in (("get_world_size", 1), ("get_rank", 0), ("barrier", None)):
        monkeypatch.setattr(engine_state.dist, name, lambda value=value: value)

    class Engine:
        def load_checkpoint(self, *_, **__):
            raise AssertionError("DeepSpeed was asked to load it")

    with pytest.raises(CheckpointError, match=rf"cannot be loaded: {PICKLE} uses .*mkdir"):
        load_engine(Engine(), tmp_path / "engine")
    assert not ran.exists()
    torch.load(tmp_path / "engine" / PICKLE, weights_only=False)
    assert ran.exists(), "the payload would have worked"
    write_engine(tmp_path / "stranger", {})
    torch.save({}, tmp_path / "stranger/engine/zero_pp_rank_0_mp_rank_00_optim_states.pt")
    with pytest.raises(CheckpointError, match="is not in its manifest"):
        load_engine(Engine(), tmp_path / "stranger")


def test_a_file_that_torch_cannot_check_is_rejected(tmp_path):
    (tmp_path / "a.pt").write_bytes(b"\x80\x02cposix\nsystem\n.")
    with pytest.raises(CheckpointError, match=r"a\.pt cannot be checked"):
        check_pickles(tmp_path, ["a.pt"])
