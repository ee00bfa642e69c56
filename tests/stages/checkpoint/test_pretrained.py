"""A finished checkpoint is self-contained: one folder loads with its tokenizer and what it needs for text.

Models in memory are saved as such folders.
"""

import errno
import shutil
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from tokenizers import Tokenizer, models

from model.config import ImageInput
from model.growth import grow_model
from model.initialization import build_model
from model.policy import GrowthPolicy
from model.tokenformer_config import Routing
from stages.checkpoint import load_pretrained, save_model
from stages.checkpoint.disk_full import DiskFull
from stages.checkpoint.manifest import CheckpointError, read_manifest, verify_checkpoint
from stages.checkpoint.parameters import read_parameter
from stages.grow.expand import expand, shrink
from tests.pretrained import END_OF_TEXT, byte_tokenizer, text_config, write_pretrained
from tests.stages.checkpoints import small_config, write_checkpoint


def test_a_folder_moved_elsewhere_has_all_that_text_needs(tmp_path):
    write_pretrained(tmp_path / "final", text_config(vocab_size=264))
    loaded = load_pretrained((tmp_path / "final").rename(tmp_path / "elsewhere"))
    ids = loaded.tokenizer.encode("the thing in there").ids
    assert loaded.tokenizer.decode(ids) == "the thing in there"
    assert loaded.model(torch.tensor([ids])).shape == (1, len(ids), 264)
    assert (loaded.num_token_ids, loaded.text.context_length) == (261, 32)
    assert loaded.text.end_of_text_id == loaded.tokenizer.token_to_id(END_OF_TEXT)


def test_growing_and_shrinking_pass_the_tokenizer_on(tmp_path, pretrained):
    expand(pretrained, tmp_path / "grown", attention_tokens=3)
    shrink(tmp_path / "grown", tmp_path / "shrunk")
    for made in (tmp_path / "grown", tmp_path / "shrunk"):
        verify_checkpoint(made)
        assert read_manifest(made).text == read_manifest(pretrained).text
        assert load_pretrained(made).tokenizer.get_vocab() == byte_tokenizer().get_vocab()


def test_a_checkpoint_without_a_tokenizer_takes_one_from_a_file(tmp_path):
    write_checkpoint(tmp_path / "bare", text_config(vocab_size=300))
    with pytest.raises(CheckpointError, match=r"bare has no tokenizer; give one with --tokenizer FILE"):
        load_pretrained(tmp_path / "bare")
    byte_tokenizer().save(str(tmp_path / "given.json"))
    loaded = load_pretrained(tmp_path / "bare", tokenizer=tmp_path / "given.json")
    assert (loaded.num_token_ids, loaded.text.end_of_text_id) == (261, 0)


def test_a_tokenizer_that_is_damaged_or_does_not_fit_is_rejected(checkpoint, pretrained, tmp_path):
    byte_tokenizer().save(str(tmp_path / "given.json"))
    (tmp_path / "junk.json").write_text("[]")
    Tokenizer(models.BPE()).save(str(tmp_path / "empty.json"))
    (pretrained / "tokenizer.json").write_text("{}")
    for directory, name, message in (
        (checkpoint, "given.json", r"has 261 token ids, but the model of .*final has only 31"),
        (checkpoint, "junk.json", r"junk.json is not a tokenizer.json"),
        (checkpoint, "empty.json", r"empty.json has no tokens"),
        (checkpoint, "nowhere.json", r"nowhere.json cannot be read: No such file"),
        (pretrained, None, r"tokenizer.json does not have the hash in the manifest"),
    ):
        with pytest.raises(CheckpointError, match=message):
            load_pretrained(directory, tokenizer=tmp_path / name if name else None)


def test_a_grown_model_even_if_wrapped_is_saved_whole_and_is_a_checkpoint_like_any(tmp_path, pretrained):
    old = load_pretrained(pretrained)
    grown: Any = grow_model(old.model, attention_tokens=4, policy=GrowthPolicy(routing=Routing(groups=2, read=1)))
    grown.blocks["0"].ffn.routers["1"].bias_G.fill_(0.5)  # as training would
    wrapped: Any = torch.nn.DataParallel(grown)
    wrapped.config = grown.config  # torch.compile passes attributes through
    manifest = save_model(wrapped, tmp_path / "new", text_of=pretrained)
    verify_checkpoint(tmp_path / "new")
    new = load_pretrained(str(tmp_path / "new"))
    assert new.model.config == grown.balanced(grown.config) != grown.config
    assert all(torch.equal(one, grown.get_parameter(name)) for name, one in new.model.named_parameters())
    assert new.text == old.text
    assert new.tokenizer.to_str() == old.tokenizer.to_str()
    assert (manifest.lineage.operation, manifest.lineage.cost.complete) == ("import", False)
    assert (manifest.step, manifest.samples_seen, manifest.seed) == (0, 0, 0)
    assert read_parameter(pretrained, old.manifest, "embedding.weight", moments=False).exp_avg.numel() == 0
    assert expand(tmp_path / "new", tmp_path / "more", attention_tokens=2).model.newest_generation == 2
    assert shrink(tmp_path / "new", tmp_path / "less").model == text_config()


def test_a_saved_model_of_images_keeps_the_names_of_its_classes(tmp_path, pretrained):
    config = small_config(image=ImageInput(size=4, patch=2))
    write_checkpoint(tmp_path / "image", config, tokenizer_sha256=None, classes=tuple(map(str, range(31))))
    model = build_model(config, seed=0)
    assert save_model(model, tmp_path / "new", text_of=tmp_path / "image").classes[30] == "30"
    with pytest.raises(CheckpointError, match="has 0 classes of images, but the model has 31"):
        save_model(model, tmp_path / "wrong", text_of=pretrained)


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
