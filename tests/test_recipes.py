"""Every recipe of docs/api.md runs as it stands, on a tiny checkpoint and run under the names that the page uses."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from stages.checkpoint.manifest import verify_checkpoint
from tests.pretrained import write_pretrained
from tests.stages.data.test_dataset import write_dataset
from tests.workers import REPOSITORY

PAGE = REPOSITORY / "docs/api.md"
CHECKPOINT = "runs/quickstart/stages/2-262k/final"


def recipes(page: str) -> dict[str, str]:
    """The Python block below each heading of a page."""
    return dict(re.findall(r"^## ([^\n]*)\n.*?^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE))


RECIPES = recipes(PAGE.read_text())


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the page names."""
    folder = tmp_path_factory.mktemp("recipes")
    write_pretrained(folder / CHECKPOINT)
    write_dataset(folder / "runs/.datasets/texts-396a28ec70bd", [20_000], [1000])
    (folder / "book.txt").write_text("the thing in the hat then went into the inn. " * 20)
    return folder


@pytest.fixture
def run(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a recipe in that folder; returns its names."""
    monkeypatch.chdir(prepared)

    def run_recipe(heading: str) -> dict[str, Any]:
        names: dict[str, Any] = {"__name__": "__main__"}
        with torch.random.fork_rng():
            torch.manual_seed(0)
            exec(compile(RECIPES[heading], f"{PAGE.name}: {heading}", "exec"), names)
        return names

    return run_recipe


def test_the_recipe_for_loading_generates_and_computes_logits_and_a_loss(run):
    names = run("Load a checkpoint and generate text")
    assert names["logits_BTV"].shape == (2, 16, names["model"].config.vocab_size)
    assert names["loss"] > 0
    assert names["sample"].finish_reason


def test_the_recipe_for_reading_gives_the_samples_of_its_last_step(run):
    names = run("Read the training samples with your own loader")
    last = [torch.as_tensor(names["samples"][i]) for i in range(19 * 32, 20 * 32)]
    assert torch.equal(torch.as_tensor(names["tokens_BT"]), torch.stack(last))


def test_the_recipe_for_growth_leaves_a_checkpoint_of_what_it_trained(run, prepared):
    names = run("Grow a model in memory and train it with your own loop")
    saved = verify_checkpoint(prepared / "my_model")
    assert saved.model == names["grown"].config
    assert saved.model.blocks[0].query.num_tokens == 21
    assert all(g.key_ramp == 1 for block in saved.model.blocks for g in block.ffn.generations)
    assert [group["lr"] for group in names["optimizer"].param_groups] == [1e-3, 1e-3, 2e-3]


def test_the_recipe_for_depth_takes_its_layers_off_again(run, prepared):
    run("Grow a model in depth")
    assert verify_checkpoint(prepared / "my_shrunk").files == verify_checkpoint(prepared / CHECKPOINT).files
