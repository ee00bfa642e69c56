"""Models in memory saved as checkpoints."""

import errno
import shutil
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from model.growth import grow_model
from model.initialization import build_model
from stages.checkpoint import load_pretrained, save_model
from stages.checkpoint.disk_full import DiskFull
from stages.checkpoint.manifest import CheckpointError, verify_checkpoint
from stages.checkpoint.parameters import read_parameter
from stages.grow.expand import expand, shrink
from tests.pretrained import text_config
from tests.stages.checkpoints import small_config


def test_a_grown_model_even_if_wrapped_is_saved_whole_and_is_a_checkpoint_like_any(tmp_path, pretrained):
    old = load_pretrained(pretrained)
    grown = grow_model(old.model, attention_tokens=3)
    wrapped: Any = torch.nn.DataParallel(grown)
    wrapped.config = grown.config  # torch.compile passes attributes through
    manifest = save_model(wrapped, tmp_path / "new", text_of=pretrained)
    verify_checkpoint(tmp_path / "new")
    new = load_pretrained(str(tmp_path / "new"))
    assert new.model.config == grown.config
    assert all(torch.equal(one, grown.get_parameter(name)) for name, one in new.model.named_parameters())
    assert new.text == old.text
    assert new.tokenizer.to_str() == old.tokenizer.to_str()
    assert (manifest.lineage.operation, manifest.lineage.cost.complete) == ("import", False)
    assert (manifest.step, manifest.samples_seen, manifest.seed) == (0, 0, 0)
    assert read_parameter(pretrained, old.manifest, "embedding.weight", moments=False).exp_avg.numel() == 0
    assert expand(tmp_path / "new", tmp_path / "more", attention_tokens=2).model.newest_generation == 2
    assert shrink(tmp_path / "new", tmp_path / "less").model == text_config()


def test_what_cannot_be_saved_leaves_nothing_behind(tmp_path, pretrained, monkeypatch):
    model, tokenizer = load_pretrained(pretrained).model, pretrained / "tokenizer.json"

    def rejected(error: type[Exception], message: str, model: Any = model, name: str = "new") -> None:
        with pytest.raises(error, match=message):
            save_model(model, tmp_path / name, text_of=pretrained)
        assert [path.name for path in tmp_path.iterdir()] == ["old"]

    small = build_model(small_config(), seed=0)
    rejected(CheckpointError, r"261 token ids, but the model of .* has only 31", small)
    rejected(CheckpointError, "already exists", name="old")
    usage, full = shutil.disk_usage(tmp_path), Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda path: usage._replace(free=70_000))
        rejected(DiskFull, r"new takes .* nothing was written")
    with monkeypatch.context() as patched:
        patched.setattr("stages.checkpoint.parameters.write_file", full)
        rejected(DiskFull, r"the disk of .*new is full while it was being written")
    tokenizer.write_bytes(tokenizer.read_bytes().replace(b"Gr", b"GR", 1) + b" ")
    rejected(CheckpointError, r"old is broken: tokenizer.json does not have the hash")
    tokenizer.unlink()
    rejected(CheckpointError, r"tokenizer.json cannot be read: No such file")
