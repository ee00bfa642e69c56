"""Generating text: equal to the model without a cache, and where and why a text ends."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.errors import Failure, UserError
from stages.checkpoint.pretrained import load_pretrained
from stages.generate import generate as generating
from stages.generate.decode import choose, decode, draws
from stages.generate.generate import generate
from stages.generate.settings import GREEDY, GenerationSettings, Sampling
from tests.model.test_cache import VOCAB_SIZE, models
from tests.pretrained import END_OF_TEXT, byte_tokenizer, text_config, write_pretrained

prompts = st.lists(st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=6), min_size=1, max_size=3)
NUM_IDS = VOCAB_SIZE - 3


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("checkpoint") / "final"
    write_pretrained(directory, text_config(vocab_size=264, attention_tokens=3, ffn_tokens=3))
    return load_pretrained(directory)


def without_cache(model, prompt, num_new, sampling, row):
    ids = torch.tensor([prompt])
    for draw in draws(sampling.seed, [row], num_new)[0]:
        with torch.no_grad():
            logits_BV = model(ids)[:, -1, :NUM_IDS]
        ids = torch.cat((ids, choose(logits_BV, draw[None], sampling)[:, None]), dim=1)
    return ids[0, len(prompt) :].tolist()


@settings(max_examples=20)
@given(models(), prompts, st.sampled_from([GREEDY, Sampling(temperature=1.0, top_p=0.9, seed=3)]))
def test_every_row_gets_the_tokens_of_its_prompt_alone_without_a_cache(model, rows, sampling):
    steps = decode(model, rows, 6, sampling, num_token_ids=NUM_IDS)
    for number, (prompt, found) in enumerate(zip(rows, zip(*steps, strict=True), strict=True)):
        assert list(found) == without_cache(model, prompt, 6, sampling, number)


def test_equal_seeds_give_equal_texts_and_a_sample_does_not_depend_on_their_number(pretrained):
    def texts(seed: int, num_samples: int = 3) -> list[str]:
        sampling = Sampling(temperature=1.0, seed=seed)
        wanted = GenerationSettings(max_new_tokens=12, num_samples=num_samples, sampling=sampling)
        return [sample.text for sample in generate(pretrained, "the", wanted).samples]

    first = texts(1)
    torch.manual_seed(1)
    assert texts(1) == first
    assert texts(1, num_samples=1) == first[:1]
    assert texts(2) != first
    assert len(set(first)) == 3


def test_text_ends_at_the_context_length_and_says_so(pretrained):
    made = generate(pretrained, "x" * 28, GenerationSettings(sampling=GREEDY))
    [sample] = made.samples
    assert (len(made.prompt_tokens), len(sample.tokens), sample.finish_reason) == (28, 4, "context")
    longer = generate(pretrained, "x" * 28, GenerationSettings(max_new_tokens=9, context_length=64, sampling=GREEDY))
    assert (len(longer.samples[0].tokens), longer.samples[0].finish_reason) == (9, "length")
    assert len(generate(pretrained, "x" * 31).samples[0].tokens) == 1
    with pytest.raises(UserError, match="the prompt has 32 tokens; with a context of 32 tokens it may have 31"):
        generate(pretrained, "x" * 32)


def test_an_empty_prompt_begins_a_new_text(pretrained):
    assert generate(pretrained, "", GenerationSettings(max_new_tokens=1)).prompt_tokens == (0,)
    unknown = pretrained.manifest.text.model_copy(update={"end_of_text_id": None})
    bare = pretrained._replace(manifest=pretrained.manifest.model_copy(update={"text": unknown}))
    with pytest.raises(UserError, match="the prompt is empty"):
        generate(bare, "")
    facts = unknown.model_copy(update={"begin_of_text": END_OF_TEXT, "begin_of_text_id": 0})
    begins = pretrained._replace(manifest=pretrained.manifest.model_copy(update={"text": facts}))
    for prompt in ("", "hi", f"{END_OF_TEXT}hi"):
        expected = (0, *byte_tokenizer().encode(prompt.removeprefix(END_OF_TEXT)).ids)
        assert generate(begins, prompt, GenerationSettings(max_new_tokens=1)).prompt_tokens == expected


def test_each_sample_ends_for_its_own_reason(pretrained, monkeypatch):
    rows = [byte_tokenizer().encode(text).ids for text in ("abcdefg", "ab--xyz", "a<|endoftext|>bcdef")]
    monkeypatch.setattr(generating, "decode", lambda *_, **__: map(list, zip(*rows, strict=True)))
    shown = ["", "", ""]

    def show(number: int, text: str) -> None:
        shown[number] += text

    made = generate(pretrained, "q", GenerationSettings(max_new_tokens=7, num_samples=3, stop=("--",)), show)
    found = [(sample.text, sample.finish_reason, len(sample.tokens)) for sample in made.samples]
    assert found == [("abcdefg", "length", 7), ("ab", "stop", 4), ("a", "end_of_text", 2)]
    assert shown == [sample.text for sample in made.samples]


def test_a_model_that_diverged_is_a_failure(tmp_path):
    write_pretrained(tmp_path / "final")
    broken = load_pretrained(tmp_path / "final")
    with torch.no_grad():
        broken.model.embedding.weight.fill_(torch.nan)
    with pytest.raises(Failure, match="logits are not finite"):
        generate(broken, "a")
