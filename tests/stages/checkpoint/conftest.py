"""A checkpoint that the tests of this folder may damage."""

import pytest

from tests.stages.checkpoints import write_checkpoint


@pytest.fixture
def checkpoint(tmp_path):
    write_checkpoint(tmp_path / "final")
    return tmp_path / "final"
