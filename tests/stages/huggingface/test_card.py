"""The model card of an export."""

from dataclasses import replace

import pytest
import yaml

from stages.huggingface.card import CardFacts, model_card
from stages.huggingface.export import HuggingFaceExport
from stages.huggingface.same_logits import LogitsCheck

EXPORT = HuggingFaceExport(
    architecture="TokenformerForCausalLM",
    own_code=True,
    dtype="float32",
    context_length=64,
    keeps_generations=False,
    weight_files=("model.safetensors",),
    weight_bytes=1_234_567,
    check=LogitsCheck("5.23.0", 3e-7, 2e-5, None),
)
FACTS = CardFacts(
    name="quick",
    model=[("parameters", "308k (308,641)")],
    generations=[("generation", "parameters"), ("0", "100k")],
    lineage=["init: drawn at random, seed 7", "train: 11 steps, in quick/small"],
    cost=[("cost", "6.00e09 FLOPs"), ("", "FLOPs by part: head 1.00e09")],
    data=[("source", "hub:some|data_set")],
    verdicts=[("quick against scratch", ["At equal loss growing won: 1.20x.", "Caution: 1 budget."])],
    num_padding_rows=0,
)


def test_the_metadata_is_yaml_and_leaves_the_license_to_the_user():
    card = model_card(FACTS, EXPORT)
    _, metadata, text = card.split("---\n", 2)
    assert yaml.safe_load(metadata) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["tokenformer", "growctl"],
    }
    assert "## License\n\nNot chosen yet." in text


def test_lineage_cost_and_verdict_are_told_in_order():
    card = model_card(FACTS, EXPORT)
    told = (
        "| parameters | 308k (308,641) |",
        "| generation | parameters |\n| --- | --- |\n| 0 | 100k |",
        "1. init: drawn at random, seed 7\n2. train: 11 steps, in quick/small",
        "| cost | 6.00e09 FLOPs |\n|  | FLOPs by part: head 1.00e09 |",
        "### quick against scratch\n\n- At equal loss growing won: 1.20x.\n- Caution: 1 budget.",
    )
    places = [card.index(text) for text in told]
    assert places == sorted(places)
    assert "No report" in model_card(replace(FACTS, verdicts=[]), EXPORT)


def test_names_of_the_user_are_no_markdown():
    card = model_card(replace(FACTS, name="a_b*c<d>"), EXPORT)
    assert "# a\\_b\\*c\\<d\\>" in card
    assert 'path = "a_b*c<d>"' in card
    assert r"| source | hub:some\|data\_set |" in card


@pytest.mark.parametrize("own_code", [True, False])
def test_it_shows_how_to_load_the_export(own_code):
    card = model_card(FACTS, replace(EXPORT, own_code=own_code))
    assert card.count("trust_remote_code=True") == (2 if own_code else 0)
    assert ("target_parameters" in card) == own_code


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (LogitsCheck("5.23.0", 3e-7, 2e-5, None), "the largest difference in float32 is 3e-07 (2e-05 allowed)"),
        (LogitsCheck(None, None, None, "Transformers is not installed"), "| no: Transformers is not installed |"),
        (None, "| compared with the checkpoint | no |"),
    ],
)
def test_it_says_whether_the_logits_were_compared(check, words):
    assert words in model_card(FACTS, replace(EXPORT, check=check))


def test_it_warns_of_rows_without_tokens():
    assert "suppress_tokens" not in model_card(FACTS, EXPORT)
    assert "27 rows that no token has" in model_card(replace(FACTS, num_padding_rows=27), EXPORT)
