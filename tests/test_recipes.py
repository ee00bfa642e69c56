"""Every recipe of docs/api.md runs as it stands, on a tiny checkpoint and run under the names that the page uses."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from stages.checkpoint.manifest import verify_checkpoint
from stages.evaluate.documents import TokenStream
from tests.growctl.invented_runs import ladder
from tests.pretrained import write_pretrained
from tests.stages.data.test_dataset import write_dataset
from tests.workers import REPOSITORY

PAGE = REPOSITORY / "docs/api.md"
CHECKPOINT = "runs/quickstart/stages/2-262k/final"


def recipes(page: str) -> dict[str, str]:
    """The Python blocks of a page, by heading; a second one under the same heading has a number."""
    found: dict[str, str] = {}
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        heading = section.partition("\n")[0]
        for number, code in enumerate(re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE), 1):
            found[heading if number == 1 else f"{heading} ({number})"] = code
    return found


RECIPES = recipes(PAGE.read_text())


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the page names."""
    folder = tmp_path_factory.mktemp("recipes")
    ladder(folder / "runs", name="quickstart", killed_at=200)
    write_pretrained(folder / CHECKPOINT)
    for name in ("texts-396a28ec70bd", "books-0bfdd0e1a1d3", "code-5a3f6f0c0b77"):
        write_dataset(folder / "runs/.datasets" / name, [20_000], [1000])
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


def test_the_recipe_for_logits_gives_one_for_each_token_and_a_finite_loss(run):
    names = run("Load a checkpoint and generate text (2)")
    assert names["logits_BTV"].shape == (2, 16, names["model"].config.vocab_size)
    assert names["loss"].isfinite()


@pytest.mark.parametrize("heading", ["Grow by a policy of your own", "Grow by a policy of your own (2)"])
def test_the_recipes_for_policies_add_tokens_and_keep_the_function(run, heading):
    names = run(heading)
    model, grown = names["model"], names["grown"]
    assert grown.config.blocks[0].query.num_tokens == model.config.blocks[0].query.num_tokens + 16
    ids_BT = torch.arange(8)[None]
    torch.testing.assert_close(grown(ids_BT), model(ids_BT))


def test_the_recipe_for_generation_prints_its_samples(run, capsys):
    generation = run("Load a checkpoint and generate text")["generation"]
    assert len(generation.samples) == 2
    printed = capsys.readouterr().out
    assert all("def main(" + sample.text in printed for sample in generation.samples)


def test_the_recipe_for_growth_learns_and_leaves_a_checkpoint(run, prepared):
    names = run("Grow a model in memory and train it with your own loop")
    saved = verify_checkpoint(prepared / "my_model")
    assert saved.model == names["grown"].config
    assert saved.model.blocks[0].query.num_tokens == 21
    assert all(g.key_ramp == 1 for block in saved.model.blocks for g in block.ffn.generations)
    assert [group["lr"] for group in names["optimizer"].param_groups] == [1e-3, 1e-3, 2e-3]


def test_the_recipe_for_depth_adds_layers_to_a_model_and_to_a_checkpoint_and_takes_them_off_again(run, prepared):
    names = run("Grow a model in depth")
    assert names["deeper"].config.num_layers == names["model"].config.num_layers + 2
    assert verify_checkpoint(prepared / "my_deeper").model == names["deeper"].config
    assert verify_checkpoint(prepared / "my_shrunk").files == verify_checkpoint(prepared / CHECKPOINT).files


def test_the_recipes_for_the_ledger_agree_on_the_losses_and_tell_repeated_work_apart(run):
    typed, raw = run("Read the ledger into pandas"), run("Read the ledger into pandas (2)")
    final = typed["evaluations"].query("point == 'final'")
    assert list(final["loss"]) == list(raw["finals"]["loss"]) == [1.42, 1.28]
    assert list(typed["costs"].query("replayed_flops > 0")["stage"]) == ["1-2m"]
    assert list(raw["work"]["stage"]) == ["0-800k", "1-2m", "1-2m"]  # the second stage was killed once


def test_the_recipe_for_evaluation_scores_every_token_but_the_first(run):
    names = run("Evaluate on your own text")
    stream = TokenStream([Path("book.txt")], names["pretrained"].tokenizer, names["pretrained"].text.end_of_text_id)
    assert names["score"].metric == "bits_per_byte"
    assert names["score"].num_samples == sum(map(len, stream)) - 1


def test_the_recipe_for_a_data_loader_reads_what_a_run_reads(run):
    names = run("Read the training samples with your own loader")
    assert names["tokens_BT"].tolist() == names["samples"].batch(19 * 32, 32).tolist()
    assert sum(len(batch) for batch in names["validation"]) == 999 // 64


def test_the_recipe_for_a_mixture_counts_the_tokens_of_each_source(run):
    samples = run("Read the training samples with your own loader (2)")["samples"]
    tokens = samples.tokens_by_source(0, 1500)
    assert sum(tokens.values()) == 1500 * 64
    assert abs(tokens["code"] - (300 + 250) * 64) <= 4 * 64
    loaded = next(iter(torch.utils.data.DataLoader(torch.utils.data.Subset(samples, range(1500)), batch_size=32)))
    assert loaded.tolist() == samples.batch(0, 32).tolist()


def test_the_recipe_for_grain_gives_a_rank_its_part_of_each_step_and_resumes(run):
    pytest.importorskip("grain", reason="grain is not installed")
    names = run("Read the training samples with your own loader (3)")
    samples = names["samples"]
    assert names["first_BT"].tolist() == samples.batch(0, 32)[1::2].tolist()
    assert names["second_BT"].tolist() == samples.batch(32, 32)[1::2].tolist() == next(names["batches"]).tolist()
    assert sum(len(batch) for batch in names["validation"]) == 999 // 64


def test_every_recipe_has_a_test_in_this_file():
    tests = Path(__file__).read_text()
    assert [heading for heading in RECIPES if f'"{heading}"' not in tests] == []
    assert len(RECIPES) == 12
