"""Generating text: equal to the model without a cache, where and why a text ends, its pieces, and sampling."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from tokenizers import models as tokenizer_models

from model.errors import Failure, UserError
from stages.checkpoint.pretrained import load_pretrained
from stages.generate import generate as generating
from stages.generate.decode import choose, decode, draws, filtered
from stages.generate.generate import Row, generate
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


token_ids = st.lists(st.integers(0, 260), max_size=96)
texts = st.text(st.sampled_from("ab é€😀\n"), max_size=60)


def streamed(ids, prompt=(), stop=(), tokenizer=None) -> list[str]:
    row = Row(tokenizer or byte_tokenizer(), prompt, stop)
    pieces = []
    for token in ids:
        pieces.append(row.add(token))
        if row.finish_reason:
            return pieces
    return [*pieces, row.end("length")]


@given(token_ids)
def test_the_pieces_of_any_tokens_join_to_their_text(ids):
    assert "".join(streamed(ids)) == byte_tokenizer().decode(ids)


@given(texts, texts)
def test_no_piece_of_a_text_holds_half_a_character(prompt, text):
    encode = byte_tokenizer().encode
    pieces = streamed(encode(text).ids, encode(prompt).ids)
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


@given(texts, st.lists(st.text(st.sampled_from("ab é€😀\n"), min_size=1, max_size=4), max_size=3))
def test_a_text_ends_before_its_first_stop_string(text, stop):
    pieces = streamed(byte_tokenizer().encode(text).ids, stop=stop)
    places = [text.find(one) for one in stop if one in text]
    # Stop strings are looked for as text arrives, so one that is complete first wins over one that begins first.
    expected = {text[:place] for place in places} or {text}
    assert "".join(pieces) in expected
    assert not any(one in "".join(pieces) for one in stop)


PIECES = ["▁two", "▁words", "▁", *(f"<0x{byte:02X}>" for byte in range(256))]


def sentence_piece() -> Tokenizer:
    """A tokenizer that marks words and spells other text in bytes."""
    tokenizer = Tokenizer(tokenizer_models.BPE({piece: i for i, piece in enumerate(PIECES)}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def test_a_tokenizer_that_marks_words_keeps_the_space_after_the_prompt():
    spelled = ["▁two", "▁words", "▁", *(f"<0x{byte:02X}>" for byte in "😀".encode())]
    ids = [PIECES.index(piece) for piece in spelled]
    assert "".join(streamed(ids, prompt=[0, 1], tokenizer=sentence_piece())) == " two words 😀"


LOGITS_BV = torch.tensor([[0.0, 3.0, 1.0, 2.0, -torch.inf, 2.5]])

probabilities = st.lists(st.floats(0.01, 1.0), min_size=2, max_size=9).map(
    lambda weights: torch.tensor([weights], dtype=torch.float64) / sum(weights)
)


def kept(probability_BV, **changes) -> list[int]:
    return filtered(probability_BV, Sampling(**changes))[0].nonzero()[:, 0].tolist()


def test_top_k_keeps_the_k_most_likely_tokens_and_those_as_likely_as_the_last():
    assert kept(torch.tensor([[0.1, 0.2, 0.4, 0.1, 0.2]]), top_k=2) == [1, 2, 4]


@given(probabilities, st.floats(0.05, 0.99))
def test_top_p_keeps_the_fewest_most_likely_tokens_that_reach_p(probability_BV, p):
    found = kept(probability_BV, top_p=p)
    chances = sorted(probability_BV[0, found].tolist())
    assert sum(chances) >= p - 1e-9
    assert sum(chances[1:]) < p + 1e-9
    dropped = set(range(probability_BV.shape[1])) - set(found)
    assert all(probability_BV[0, token] <= chances[0] for token in dropped)


@pytest.mark.parametrize("sampling", [Sampling(temperature=1.0), Sampling(temperature=0.5, top_k=3, top_p=0.9)])
def test_tokens_are_drawn_as_often_as_they_are_likely(sampling):
    num = 20_000
    draw_B = (torch.arange(num, dtype=torch.float64) + 0.5) / num
    counts = choose(LOGITS_BV.expand(num, -1), draw_B, sampling).bincount(minlength=6)
    expected = filtered((LOGITS_BV.double() / sampling.temperature).softmax(-1), sampling)[0]
    torch.testing.assert_close(counts / num, (expected / expected.sum()).float(), rtol=0, atol=1e-4)


def chosen(draw, scale=1.0, **sampling):
    draw_B = torch.tensor([draw], dtype=torch.float64)
    return choose(LOGITS_BV.double() * scale, draw_B, Sampling(**sampling)).item()


@given(st.floats(0, 1, exclude_max=True) | st.just(1 - 2**-53), st.floats(0.1, 5.0), st.sampled_from([1, 0.5, 1e-3]))
def test_a_token_of_probability_0_is_never_drawn(draw, temperature, top_p):
    assert chosen(draw, temperature=temperature, top_p=top_p) != 4


@pytest.mark.parametrize(("temperature", "scale"), [(0.0, 1.0), (5e-324, 1e307), (1e-6, 1e30)])
def test_a_tiny_temperature_takes_the_most_likely_token(temperature, scale):
    assert [chosen(draw, scale, temperature=temperature) for draw in (0.0, 1 - 2**-53)] == [1, 1]


def test_a_rows_random_numbers_depend_on_seed_and_row_alone():
    before = torch.get_rng_state()
    three, one = draws(5, range(3), 40), draws(5, range(1), 10)
    assert torch.equal(three[0, :10], one[0])
    assert not torch.equal(three[0], three[1])
    assert not torch.equal(one, draws(6, range(1), 10))
    assert torch.equal(torch.get_rng_state(), before)
