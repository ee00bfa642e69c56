"""The loss on text: the tokens of any file, the trainer's windows or any others, also at several contexts."""

import gzip
import math
import re
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from model.errors import Failure, UserError
from stages.checkpoint.manifest import TextFacts
from stages.checkpoint.pretrained import Pretrained, load_pretrained
from stages.corpus.prepare import prepare
from stages.corpus.prepared import Ingredient, write_mixture
from stages.data.dataset import dataset_manifest_bytes, read_dataset_manifest
from stages.data.evaluation_windows import EvaluationWindows
from stages.data.spec import DataSpec
from stages.evaluate import long_context
from stages.evaluate.documents import TokenStream, text_files
from stages.evaluate.long_context import context_losses
from stages.evaluate.results import Score, positions_of
from stages.evaluate.text import dataset_loss, require_ids, text_loss
from stages.evaluate.windows import sliding_windows
from stages.train import text_data as trainer
from tests.pretrained import byte_tokenizer, text_config, write_pretrained

TEXT = "the hen is in the barn, and the\nbarn is in the fen. " * 20


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Pretrained:
    directory = tmp_path_factory.mktemp("checkpoint") / "final"
    write_pretrained(directory)
    return load_pretrained(directory)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "text.txt"


def figures(scores: Iterable[Score], task: str = "text") -> SimpleNamespace:
    """The values of one task's scores by metric, and the tokens predicted."""
    own = [score for score in scores if score.task == task]
    return SimpleNamespace(num_tokens=own[0].num_samples, **{score.metric: score.value for score in own})


def loss_on(checkpoint: Pretrained, *files: Path, **changes: Any) -> SimpleNamespace:
    return figures(text_loss(checkpoint, files, **({"context": 32, "stride": 32, "batch_size": 4} | changes)))


def loss_on_split(checkpoint: Pretrained, dataset: Path, max_sequences: int | None = None) -> list[Score]:
    size: dict[str, Any] = {"context": 32, "max_sequences": max_sequences, "batch_size": 3}
    return list(dataset_loss(checkpoint, dataset, "validation", **size))


def plain_losses(checkpoint: Pretrained, tokens: list[int]) -> torch.Tensor:
    """The loss of every token but the first, from logits over all tokens at once."""
    logits_TV = checkpoint.model(torch.tensor([tokens[:-1]]))[0, :, : checkpoint.num_token_ids]
    return F.cross_entropy(logits_TV.double(), torch.tensor(tokens[1:]), reduction="none")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for number in range(40):
        (folder / f"{number}.txt").write_text(TEXT[number * 3 :] + str(number))
    byte_tokenizer().save(str(folder / ".tokenizer.json"))
    spec = DataSpec(source=str(folder), tokenizer=str(folder / ".tokenizer.json"), validation_fraction=0.3)
    return prepare(spec, folder / ".datasets")


def trained_on(checkpoint: Pretrained, windows: EvaluationWindows) -> dict[str, Any]:
    """The trainer's evaluation, in one process."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"get_rank": 0, "get_world_size": 1, "all_reduce": None}.items():
            patch.setattr(trainer.dist, name, lambda *_, value=value: value)
        return dict(trainer.evaluate(checkpoint.model, windows, 5, torch.device("cpu")))


@pytest.mark.parametrize("max_sequences", [None, 7])
def test_the_loss_on_a_dataset_is_the_trainers(checkpoint: Pretrained, dataset: Path, max_sequences: int | None):
    expected = trained_on(checkpoint, EvaluationWindows(dataset, "validation", 32, max_sequences))
    found = vars(figures(loss_on_split(checkpoint, dataset, max_sequences)))
    assert found == pytest.approx({name: expected[name] for name in found}, rel=1e-5)
    assert found.keys() == {"num_tokens", "loss", "perplexity", "bits_per_byte"}


def test_the_loss_on_a_mixture_is_the_trainers_and_each_sources_is_its_own(checkpoint, dataset, tmp_path):
    (tmp_path / "chant.txt").write_text("barn fen hen " * 3000)
    tokenizer = str(dataset / "tokenizer.json")
    spec = DataSpec(source=str(tmp_path / "chant.txt"), tokenizer=tokenizer, validation_fraction=0.5)
    chant = prepare(spec, tmp_path)
    mixture = write_mixture([Ingredient("farm", dataset, 3.0), Ingredient("chant", chant, 1.0)], tmp_path)
    expected = trained_on(checkpoint, EvaluationWindows(mixture, "validation", 32, 9))
    scores = loss_on_split(checkpoint, mixture, 9)
    found = vars(figures(scores))
    assert found == pytest.approx({name: expected[name] for name in found}, rel=1e-5)
    for task, directory, sequences in (("text farm", dataset, 7), ("text chant", chant, 2)):
        source, alone = figures(scores, task), figures(loss_on_split(checkpoint, directory, sequences))
        assert source.loss == pytest.approx(alone.loss, abs=1e-5)
        assert source.bits_per_byte == pytest.approx(alone.bits_per_byte, abs=1e-5)


@pytest.mark.parametrize("stride", [32, 13])
def test_strided_windows_give_every_token_the_overlap_as_context(checkpoint: Pretrained, text: Path, stride: int):
    tokens = [*byte_tokenizer().encode(TEXT).ids, 0]
    expected = plain_losses(checkpoint, tokens[:33]).tolist()
    for start in range(stride, len(tokens) - 1 - 32 + stride, stride):
        expected += plain_losses(checkpoint, tokens[start : start + 33])[32 - stride :].tolist()
    found = loss_on(checkpoint, text, stride=stride)
    assert found.num_tokens == len(tokens) - 1
    assert found.loss == pytest.approx(sum(expected) / len(expected), abs=1e-5)


def test_the_loss_is_spread_over_words_and_bytes_and_progress_rises(checkpoint: Pretrained, text: Path):
    seen: list[float] = []
    found = loss_on(checkpoint, text, stride=8, on_progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] > 0.9
    nats = found.loss * (found.num_tokens + 1)
    num_words = len(TEXT.strip().split()) + 1  # the white space at the end ends one more, empty word
    assert found.word_perplexity == pytest.approx(math.exp(nats / num_words))
    assert found.bits_per_byte == pytest.approx(nats / math.log(2) / len(TEXT.encode()))
    assert found.perplexity == pytest.approx(math.exp(found.loss))


def test_too_little_text_and_a_loss_that_is_not_finite_are_reported(checkpoint: Pretrained, tmp_path: Path, text: Path):
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(UserError, match=r"empty\.txt: the text has 0 tokens; a loss needs at least 2"):
        loss_on(checkpoint, tmp_path / "empty.txt")
    write_pretrained(tmp_path / "broken")
    broken = load_pretrained(tmp_path / "broken")
    with torch.no_grad():
        broken.model.embedding.weight[:] = math.nan
    with pytest.raises(Failure, match=r"broken gives losses that are not finite"):
        loss_on(broken, text)


def test_a_model_that_attends_within_documents_rejects_a_dataset_that_hides_them(dataset: Path, tmp_path: Path):
    write_pretrained(tmp_path / "final", text_config().model_copy(update={"document_end_id": 0}))
    masked = load_pretrained(tmp_path / "final")
    require_ids(masked, dataset)
    manifest = read_dataset_manifest(dataset)
    unended = {name: split.model_copy(update={"num_unended_documents": 4}) for name, split in manifest.splits.items()}
    for change, message in (
        ({"splits": unended}, r"8 of the 40 documents of .* do not end in <\|endoftext\|> \(id 0\); the model tells"),
        ({"end_of_text_id": 5}, r"documents of .* end in <\|endoftext\|> \(id 5\), not in the end of text with id 0"),
    ):
        (tmp_path / "manifest.json").write_bytes(dataset_manifest_bytes(manifest.model_copy(update=change)))
        with pytest.raises(UserError, match=message):
            require_ids(masked, tmp_path)


@given(st.data(), st.integers(2, 200), st.integers(1, 20))
def test_every_token_but_the_first_is_scored_once_after_enough_context(data, num_tokens: int, context: int):
    stride = data.draw(st.integers(1, context))
    cuts = sorted(data.draw(st.lists(st.integers(0, num_tokens), max_size=5)))
    scored: list[int] = []
    for window in sliding_windows(np.split(np.arange(num_tokens), cuts), context, stride):
        assert len(window.tokens) <= context + 1
        assert (np.diff(window.tokens) == 1).all()
        targets = window.tokens[len(window.tokens) - window.num_scored :].tolist()
        assert targets[0] - window.tokens[0] >= min(context - stride, targets[0]), "too little context"
        scored += targets
    assert scored == list(range(1, num_tokens))


@pytest.fixture(scope="module")
def positional(tmp_path_factory: pytest.TempPathFactory) -> Pretrained:
    directory = tmp_path_factory.mktemp("checkpoint") / "final"
    write_pretrained(directory, text_config(width=32, num_heads=2))
    opened = load_pretrained(directory)
    with torch.no_grad():
        for parameter in opened.model.parameters():
            parameter.mul_(4)  # so that positions matter
    return opened


def losses(positional: Pretrained, text: Path, *contexts: int, **changes: Any) -> dict[int, dict[str, Any]]:
    settings: dict[str, Any] = {"kind": None, "trained_length": 32, "max_tokens": 10**6} | changes
    scores = list(context_losses(positional, [text], contexts, **settings))
    return {
        context: {each.metric: each for each in scores if each.task == f"context-{context}"} for context in contexts
    }


def test_each_context_has_the_loss_of_plain_evaluation_on_the_same_tokens(positional: Pretrained, text: Path):
    for context, found in losses(positional, text, 16, 32, 128).items():
        plain = next(iter(text_loss(positional, [text], context=context, stride=context, batch_size=4)))
        assert plain.metric == "loss"
        assert found["loss"].num_samples == plain.num_samples
        assert found["loss"].value == pytest.approx(plain.value, abs=1e-5)
        parts = [score.num_samples for metric, score in found.items() if positions_of(metric)]
        assert sum(parts) == plain.num_samples
        assert found["seconds_per_token"].value > 0
        assert found["bytes_per_token"].value is None  # known on a GPU only


def test_only_contexts_beyond_training_are_scaled_by_how_much_longer_they_are(positional: Pretrained, text: Path):
    plain, scaled = (losses(positional, text, 32, 128, kind=kind) for kind in (None, "yarn"))
    assert scaled[32]["loss"].value == plain[32]["loss"].value
    assert abs(scaled[128]["loss"].value - plain[128]["loss"].value) > 1e-4


def test_the_longest_context_runs_once_unmeasured(positional: Pretrained, text: Path, monkeypatch: pytest.MonkeyPatch):
    steps: list[int | str] = []
    hidden_states = positional.model.hidden_states
    monkeypatch.setattr(long_context, "wait_for", lambda device: steps.append("wait"))

    def spy(input_BT: torch.Tensor, *rest: Any, **settings: Any) -> torch.Tensor:
        steps.append(input_BT.shape[1])
        return hidden_states(input_BT, *rest, **settings)

    monkeypatch.setattr(positional.model, "hidden_states", spy)
    losses(positional, text, 16, 128, max_tokens=129)
    assert steps == [128, "wait", 16, "wait", "wait", 128, "wait"]


def test_the_first_tokens_suffice_and_the_unmeasurable_is_refused(positional: Pretrained, text: Path, tmp_path: Path):
    found = losses(positional, text, 16, 64, max_tokens=100)
    assert [scores["loss"].num_samples for scores in found.values()] == [99, 99]
    with pytest.raises(UserError, match=r"has 743 tokens; a context of 4,096 needs 4,097"):
        losses(positional, text, 32, 4096)
    write_pretrained(tmp_path / "final", text_config(rotary_fraction=0.0))
    with pytest.raises(UserError, match=r"--rope-scaling ntk: .* has no rotary embedding to scale"):
        losses(load_pretrained(tmp_path / "final"), text, 64, kind="ntk")


END = TextFacts(end_of_text_id=0)
TWO_LINES = b'{"text": "the"}\n{"text": "hen"}\n'


def ids(*texts: str) -> list[int]:
    return [token for text in texts for token in (*byte_tokenizer().encode(text).ids, 0)]


def stream_of(*files: Path) -> tuple[list[int], TokenStream]:
    stream = TokenStream(files, byte_tokenizer(), END)
    return np.concatenate([np.empty(0, np.int64), *stream]).tolist(), stream


def test_each_file_and_each_json_line_is_a_document_with_the_end_of_text_after_it(tmp_path: Path):
    texts = {"b.txt": "the hen", "a.txt": "in the\n", ".hidden": "no", "empty.txt": " \n", "c.txt": "\ufeffthe"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "d.jsonl").write_bytes(TWO_LINES.replace(b'"hen"', b'"hen", "score": NaN'))
    (tmp_path / "e.jsonl.gz").write_bytes(gzip.compress(TWO_LINES))
    tokens, stream = stream_of(*text_files([tmp_path]))
    assert tokens == ids("in the\n", "the hen", "the", "the", "hen", "the", "hen")
    assert (stream.num_tokens, stream.num_bytes) == (len(tokens), 14 + 5 * 3)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("bad.jsonl", b'{"text": "the"}\n{"content": "hen"}\n', r"bad\.jsonl line 2 .*'text'"),
        ("latin.txt", b"caf\xe9 the hen", r"latin\.txt line 1 is not UTF-8 text"),
        ("text", None, "--text .*/text: there is no such file"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes | None, message: str):
    if content:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        stream_of(*text_files([tmp_path / name]))


def test_what_stands_around_texts_is_added_if_there_is_any_and_ordinary_text_where_it_is_spelled_out(tmp_path: Path):
    (tmp_path / "a.txt").write_text("the <|endoftext|> hen")
    assert stream_of(tmp_path / "a.txt")[0].count(0) == 1
    (tokens,) = TokenStream([tmp_path / "a.txt"], byte_tokenizer(), TextFacts(begin_of_text_id=5))
    assert [*tokens.tolist(), 0] == [5, *stream_of(tmp_path / "a.txt")[0]]


def test_a_long_document_arrives_in_pieces_with_the_tokens_and_counts_of_the_whole_and_its_share_read(tmp_path: Path):
    """Words are counted as lm-evaluation-harness counts them."""
    text = "the hen  is in\nthe barn, " * 15_000 + "é "
    (tmp_path / "a.txt").write_text(text)
    stream = TokenStream([tmp_path / "a.txt"], byte_tokenizer(), END)
    pieces = [(piece, stream.fraction, stream.num_tokens) for piece in stream]
    assert np.concatenate([piece for piece, *_ in pieces]).tolist() == ids(text)
    counts = (stream.num_words, stream.num_bytes, stream.num_tokens)
    assert counts == (len(re.split(r"\s+", text)), len(text.encode()), len(ids(text)))
    assert len(pieces) > 3
    for _, fraction, num_tokens in pieces:
        assert fraction == pytest.approx(num_tokens / stream.num_tokens, abs=0.01)
