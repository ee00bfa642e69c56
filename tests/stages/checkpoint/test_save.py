"""Models in memory saved as checkpoints."""

import pytest
import torch

from model.growth import grow_model
from model.initialization import build_model
from stages.checkpoint import load_pretrained, save_model
from stages.checkpoint.manifest import CheckpointError
from stages.checkpoint.verify import verify_checkpoint
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
    with pytest.raises(CheckpointError, match="261 token ids, but the model has only 31"):
        save_model(build_model(small_config(), seed=0), tmp_path / "new", text_of=tmp_path / "old")
    with pytest.raises(CheckpointError, match="already exists"):
        save_model(load_pretrained(tmp_path / "old").model, tmp_path / "old", text_of=tmp_path / "old")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
