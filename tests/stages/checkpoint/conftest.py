"""Checkpoints that the tests of this folder may damage."""

import pytest

from tests.pretrained import write_pretrained
from tests.stages.checkpoints import write_checkpoint


@pytest.fixture
def checkpoint(tmp_path):
    write_checkpoint(tmp_path / "final")
    return tmp_path / "final"


@pytest.fixture
def pretrained(tmp_path):
    """A checkpoint with a tokenizer, alone in its folder."""
    write_pretrained(tmp_path / "old")
    return tmp_path / "old"
