"""Models in memory saved as checkpoints."""

import errno
import shutil
from typing import Any

import pytest
import torch

from model.growth import grow_model
from model.initialization import build_model
from stages.checkpoint import load_pretrained, save_model
from stages.checkpoint.disk_full import DiskFull
from stages.checkpoint.manifest import CheckpointError, verify_checkpoint
from stages.grow.expand import expand, shrink
from tests.pretrained import text_config, write_pretrained
from tests.stages.checkpoints import small_config


def test_a_grown_model_is_saved_whole_and_loads_as_the_same_model(tmp_path):
    write_pretrained(tmp_path / "old")
    old = load_pretrained(tmp_path / "old")
    grown = grow_model(old.model, attention_tokens=3)
    manifest = save_model(grown, tmp_path / "new", text_of=tmp_path / "old")
    verify_checkpoint(tmp_path / "new")
    new = load_pretrained(str(tmp_path / "new"))
    assert new.model.config == grown.config
    assert all(torch.equal(one, grown.get_parameter(name)) for name, one in new.model.named_parameters())
    assert new.text == old.text
    assert new.tokenizer.to_str() == old.tokenizer.to_str()
    assert manifest.lineage.operation == "import"
    assert manifest.lineage.cost is not None
    assert not manifest.lineage.cost.complete


def test_a_saved_model_expands_and_shrinks_like_any_checkpoint(tmp_path):
    write_pretrained(tmp_path / "old")
    save_model(
        grow_model(load_pretrained(tmp_path / "old").model, attention_tokens=3),
        tmp_path / "new",
        text_of=tmp_path / "old",
    )
    assert expand(tmp_path / "new", tmp_path / "more", attention_tokens=2).model.newest_generation == 2
    assert shrink(tmp_path / "new", tmp_path / "less").model == text_config()


def test_a_model_that_cannot_be_saved_leaves_nothing_behind(tmp_path):
    write_pretrained(tmp_path / "old")
    with pytest.raises(CheckpointError, match=r"261 token ids, but the model of .* has only 31"):
        save_model(build_model(small_config(), seed=0), tmp_path / "new", text_of=tmp_path / "old")
    with pytest.raises(CheckpointError, match="already exists"):
        save_model(load_pretrained(tmp_path / "old").model, tmp_path / "old", text_of=tmp_path / "old")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_a_wrapped_model_is_saved_under_the_names_of_its_parameters(tmp_path):
    write_pretrained(tmp_path / "old")
    model = load_pretrained(tmp_path / "old").model
    wrapped: Any = torch.nn.DataParallel(model)
    wrapped.config = model.config  # torch.compile passes attributes through
    save_model(wrapped, tmp_path / "new", text_of=tmp_path / "old")
    new = load_pretrained(tmp_path / "new").model
    assert all(torch.equal(one, model.get_parameter(name)) for name, one in new.named_parameters())


def test_a_missing_or_damaged_tokenizer_is_reported_before_anything_is_written(tmp_path):
    write_pretrained(tmp_path / "old")
    model = load_pretrained(tmp_path / "old").model
    tokenizer = tmp_path / "old/tokenizer.json"
    content = tokenizer.read_bytes()
    tokenizer.write_bytes(content.replace(b"Gr", b"GR", 1) + b" ")
    with pytest.raises(CheckpointError, match=r"old is broken: tokenizer.json does not have the hash"):
        save_model(model, tmp_path / "new", text_of=tmp_path / "old")
    tokenizer.unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer.json cannot be read: No such file"):
        save_model(model, tmp_path / "new", text_of=tmp_path / "old")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_a_full_disk_is_reported_before_or_while_a_model_is_saved(tmp_path, monkeypatch):
    write_pretrained(tmp_path / "old")
    model = load_pretrained(tmp_path / "old").model
    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda path: usage._replace(free=70_000))
        with pytest.raises(DiskFull, match=r"new takes .* nothing was written"):
            save_model(model, tmp_path / "new", text_of=tmp_path / "old")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("stages.checkpoint.parameters.write_file", full)
    with pytest.raises(DiskFull, match=r"the disk of .*new is full while it was being written"):
        save_model(model, tmp_path / "new", text_of=tmp_path / "old")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
