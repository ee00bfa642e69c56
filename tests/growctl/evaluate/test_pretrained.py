"""Opening a checkpoint: whose tokenizer reads its text."""

from pathlib import Path

from growctl.evaluate.pretrained import open_pretrained
from stages.stage_dir import TOKENIZER_NAME
from tests.pretrained import write_pretrained
from tests.stages.grow.test_compare import rewrite


def opened(checkpoint: Path, tokenizer: Path | None = None) -> list[str]:
    """Opens a checkpoint and returns what the user is told."""
    told: list[str] = []
    with open_pretrained(str(checkpoint), checkpoint.parent, told.append, tokenizer=tokenizer, device="cpu"):
        return told


def test_a_given_tokenizer_other_than_the_models_own_gets_a_warning(tmp_path):
    own = tmp_path / "final" / TOKENIZER_NAME
    write_pretrained(own.parent)
    saved_again = tmp_path / "again.json"
    saved_again.write_bytes(own.read_bytes() + b"\n")
    assert opened(own.parent, own) == []
    [warning] = opened(own.parent, saved_again)
    assert warning.startswith(f"--tokenizer {saved_again} is not the file that {own.parent} was trained with")
    rewrite(own.parent, tokenizer_sha256=None)
    assert opened(own.parent, saved_again) == [], "not known"
