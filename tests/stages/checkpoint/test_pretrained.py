"""A finished checkpoint is self-contained: one folder loads with its tokenizer and what it needs for text."""

import pytest
import torch
from tokenizers import Tokenizer, models

from stages.checkpoint.manifest import CheckpointError, read_manifest, verify_checkpoint
from stages.checkpoint.pretrained import load_pretrained
from stages.grow.expand import expand, shrink
from tests.pretrained import END_OF_TEXT, byte_tokenizer, text_config, write_pretrained
from tests.stages.checkpoints import write_checkpoint


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
