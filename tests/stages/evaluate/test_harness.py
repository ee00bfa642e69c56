"""lm-evaluation-harness on a checkpoint in memory: log-probabilities, text and the scores of local tasks.

Importing lm_eval takes seconds, so everything that needs it is in this file.
"""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("lm_eval", reason="lm-eval, of the extra `eval`, is not installed")

from model.errors import UserError
from stages.checkpoint.pretrained import Pretrained, load_pretrained
from stages.evaluate import tasks as task_module
from stages.evaluate.harness import GrowctlLM, generation_settings
from stages.evaluate.tasks import find_tasks, task_scores
from stages.generate.generate import generate
from stages.generate.settings import GREEDY, GenerationSettings, Sampling
from tests.growctl.runs import run_here
from tests.pretrained import byte_tokenizer, text_config, write_pretrained

CHOICES = """
task: hen_choice
dataset_path: json
dataset_kwargs: {data_files: FOLDER/choices.jsonl}
test_split: train
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
LAST_WORD = """
task: hen_lambada
dataset_path: json
dataset_kwargs: {data_files: FOLDER/words.jsonl}
test_split: train
output_type: loglikelihood
doc_to_text: "{{text.split(' ')[:-1]|join(' ')}}"
doc_to_target: "{{' '+text.split(' ')[-1]}}"
metric_list: [{metric: perplexity}, {metric: acc}]
"""
WHOLE_TEXT = """
task: hen_text
dataset_path: json
dataset_kwargs: {data_files: FOLDER/words.jsonl}
test_split: train
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]
"""
CONTINUATION = """
task: hen_generation
dataset_path: json
dataset_kwargs: {data_files: FOLDER/words.jsonl}
test_split: train
output_type: generate_until
doc_to_text: "{{text}}"
doc_to_target: "{{text}}"
generation_kwargs: {until: ["."], max_gen_toks: 5}
metric_list: [{metric: exact_match}]
"""
TEXTS = [
    "the hen in the barn",
    "in the fen, the hen",
    "then the thin hen in the inn and in the den is in the barn again",
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Pretrained:
    directory = tmp_path_factory.mktemp("checkpoint") / "final"
    write_pretrained(directory, text_config(vocab_size=300))
    opened = load_pretrained(directory)
    with torch.no_grad():
        opened.model.embedding.weight[261:] *= 50  # padding rows that would win every softmax
    return opened


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of local tasks: YAML files and their data."""
    folder = tmp_path_factory.mktemp("tasks")
    choices = [
        {"question": text, "choices": [" hen", " in the inn", "."], "answer": i % 3} for i, text in enumerate(TEXTS)
    ]
    (folder / "choices.jsonl").write_text("".join(json.dumps(row) + "\n" for row in choices))
    (folder / "words.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    for number, text in enumerate((CHOICES, LAST_WORD, WHOLE_TEXT, CONTINUATION)):
        (folder / f"{number}.yaml").write_text(text.replace("FOLDER", str(folder)))
    return folder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the data that `datasets` converts out of the user's cache."""
    import datasets

    cache = str(tmp_path_factory.getbasetemp() / "datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
    datasets.disable_progress_bars()


def adapter(checkpoint: Pretrained, batch_size: int = 4, context: int = 32) -> GrowctlLM:
    return GrowctlLM(checkpoint, context=context, batch_size=batch_size)


def requests(kind: Any, *arguments: tuple[Any, ...]) -> list[Any]:
    from lm_eval.api.instance import Instance

    return [Instance(request_type=kind, doc={}, arguments=args, idx=i) for i, args in enumerate(arguments)]


def plain(checkpoint: Pretrained, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    """The log-probability of a continuation and whether it is greedy, from one pass over one unpadded row."""
    row = torch.tensor([context + continuation])[:, -33:]
    with torch.no_grad():
        log_TV = F.log_softmax(checkpoint.model(row[:, :-1])[0, -len(continuation) :, :261].double(), dim=-1)
    targets = torch.tensor(continuation)
    return log_TV.gather(1, targets[:, None]).sum().item(), bool((log_TV.argmax(-1) == targets).all())


def test_log_probabilities_do_not_depend_on_batches_and_leave_out_padding_rows(checkpoint: Pretrained):
    pairs = [(text, ending) for text in (*TEXTS, "") for ending in (" hen", " in the inn", "x" * 30)]
    encode = byte_tokenizer().encode
    expected = [plain(checkpoint, encode(text).ids or [0], encode(ending).ids) for text, ending in pairs]
    for settings in ({"batch_size": 1}, {"batch_size": 5}):
        found = adapter(checkpoint, **settings).loglikelihood(requests("loglikelihood", *pairs), disable_tqdm=True)
        assert [score for score, _ in found] == pytest.approx([score for score, _ in expected], rel=1e-5)
        assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]


def test_the_greedy_continuation_is_recognised(checkpoint: Pretrained):
    text = generate(checkpoint, "the hen", GenerationSettings(max_new_tokens=4, sampling=GREEDY)).samples[0].tokens
    found = adapter(checkpoint)._loglikelihood_tokens([(None, byte_tokenizer().encode("the hen").ids, [*text])])
    assert found[0][1] is True


def test_rolling_log_probabilities_cover_every_token_of_a_text_longer_than_the_context(checkpoint: Pretrained):
    text = " ".join(TEXTS) * 2
    tokens = byte_tokenizer().encode(text).ids
    expected = sum(
        plain(
            checkpoint,
            [0, *tokens][max(0, min(start + 32, len(tokens)) - 32) : start + 1],
            tokens[start : start + 32],
        )[0]
        for start in range(0, len(tokens), 32)
    )
    found = adapter(checkpoint).loglikelihood_rolling(requests("loglikelihood_rolling", (text,), ("",)))
    assert found == pytest.approx([expected, 0.0], rel=1e-5)


def test_generated_text_is_that_of_generate_whatever_the_batch(checkpoint: Pretrained):
    prompts = requests("generate_until", *((text, {"until": ["."], "max_gen_toks": 6}) for text in TEXTS))
    expected = []
    for text in TEXTS:
        kept = byte_tokenizer().encode(text).ids[-26:]  # the context without the tokens to generate
        settings = GenerationSettings(max_new_tokens=6, sampling=GREEDY, stop=(".",))
        expected.append(generate(checkpoint, byte_tokenizer().decode(kept), settings).samples[0].text)
    for batches in ({"batch_size": 1}, {"batch_size": 3}):
        assert adapter(checkpoint, **batches).generate_until(prompts) == expected


SAMPLED = {"until": ["."], "max_gen_toks": 6, "do_sample": True, "temperature": 1.0}


def test_repeats_of_a_prompt_draw_texts_of_their_own(checkpoint: Pretrained):
    (request,) = requests("generate_until", (TEXTS[0], SAMPLED))
    texts = adapter(checkpoint, batch_size=1).generate_until([request] * 4)  # as lm_eval repeats requests
    assert len(set(texts)) > 1
    assert adapter(checkpoint).generate_until([request] * 2) == texts[:2]


def test_sampled_text_depends_neither_on_the_batch_nor_on_other_requests(checkpoint: Pretrained):
    prompts = requests("generate_until", *((text, SAMPLED) for text in TEXTS))
    expected = adapter(checkpoint, batch_size=1).generate_until(prompts)
    for batches in ({"batch_size": 3},):
        assert adapter(checkpoint, **batches).generate_until(prompts) == expected
    assert adapter(checkpoint).generate_until(prompts[1:]) == expected[1:]


@pytest.mark.parametrize(
    ("asked", "sampling"),
    [
        ({}, GREEDY),
        ({"do_sample": False, "temperature": 0.7}, GREEDY),
        ({"do_sample": True}, Sampling(temperature=1.0)),
        ({"temperature": 0.7, "top_k": -1}, Sampling(temperature=0.7)),
        (
            {"temperature": 0.7, "top_k": 5, "top_p": 0.9},
            Sampling(temperature=0.7, top_k=5, top_p=0.9),
        ),
        ({"num_beams": 1, "repetition_penalty": 1.0}, GREEDY),
    ],
)
def test_what_a_task_asks_of_generation_is_translated(asked: dict[str, Any], sampling: Sampling):
    assert generation_settings("poems", asked).sampling == sampling


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"num_beams": 4}, "--tasks poems: growctl cannot generate with num_beams: 4, as its YAML file asks"),
        ({"temperature": 0.7, "top_p": 7}, "--tasks poems: generation_kwargs.top_p: Input should be less than"),
    ],
)
def test_what_growctl_cannot_do_for_a_task_is_refused(asked: dict[str, Any], said: str):
    with pytest.raises(UserError, match=re.escape(said)):
        generation_settings("poems", asked)


def test_a_task_that_wants_more_tokens_than_the_context_gets_half_of_it(checkpoint: Pretrained):
    (text,) = adapter(checkpoint).generate_until(requests("generate_until", (TEXTS[2], {"until": []})))
    assert len(text) > 0


def test_a_continuation_longer_than_the_context_is_refused(checkpoint: Pretrained):
    with pytest.raises(UserError, match="a continuation of 40 tokens does not fit into the context of 32"):
        adapter(checkpoint).loglikelihood(requests("loglikelihood", ("the", "x" * 40)), disable_tqdm=True)


def test_a_tokenizer_without_an_end_of_text_is_refused(checkpoint: Pretrained):
    text = checkpoint.text.model_copy(update={"end_of_text_id": None})
    without = checkpoint._replace(manifest=checkpoint.manifest.model_copy(update={"text": text}))
    with pytest.raises(UserError, match="its tokenizer has no end of text"):
        adapter(without)


def test_local_tasks_get_the_scores_that_their_definitions_imply(checkpoint: Pretrained, tasks: Path):
    names = ["hen_choice", "hen_lambada", "hen_text", "hen_generation"]
    manager, found = find_tasks(names, tasks)
    results = list(task_scores(adapter(checkpoint), manager, found, limit=None))
    scores = {(score.task, score.metric): score for score in results}
    encode = byte_tokenizer().encode
    logs = [
        [plain(checkpoint, encode(text).ids, encode(end).ids)[0] for end in (" hen", " in the inn", ".")]
        for text in TEXTS
    ]
    best = [max(range(3), key=row.__getitem__) for row in logs]
    assert scores["hen_choice", "acc"].value == pytest.approx(sum(b == i % 3 for i, b in enumerate(best)) / 3)
    last = [
        plain(checkpoint, encode(text.rsplit(" ", 1)[0]).ids, encode(" " + text.rsplit(" ", 1)[1]).ids)[0]
        for text in TEXTS
    ]
    assert scores["hen_lambada", "perplexity"].value == pytest.approx(math.exp(-sum(last) / 3), rel=1e-5)
    words = sum(len(re.split(r"\s+", text)) for text in TEXTS)
    rolled = adapter(checkpoint).loglikelihood_rolling(requests("loglikelihood_rolling", *((text,) for text in TEXTS)))
    assert scores["hen_text", "word_perplexity"].value == pytest.approx(math.exp(-sum(rolled) / words), rel=1e-5)
    assert scores["hen_generation", "exact_match"].value == 0.0
    assert {score.num_samples for score in results} == {3}
    assert {score.num_shots for score in results} == {0}
    assert scores["hen_choice", "acc"].standard_error is not None


def test_a_limit_takes_the_first_examples(checkpoint: Pretrained, tasks: Path):
    results = task_scores(adapter(checkpoint), *find_tasks(["hen_choice"], tasks), limit=2)
    assert {score.num_samples for score in results} == {2}


def test_a_pattern_stands_for_the_tasks_that_it_matches(tasks: Path):
    assert find_tasks(["hen_l*"], tasks)[1] == ["hen_lambada"]


def test_an_unknown_task_gets_the_nearest_names(tasks: Path, monkeypatch: pytest.MonkeyPatch):
    own = task_module.TaskManager
    monkeypatch.setattr(task_module, "TaskManager", lambda **settings: own(**settings | {"include_defaults": False}))
    with pytest.raises(UserError, match=r"--tasks hen_choise: .* no such task; did you mean hen_choice"):
        find_tasks(["hen_choise"], tasks)


def test_data_that_cannot_be_loaded_is_one_message_with_the_way_out(
    checkpoint: Pretrained, tasks: Path, monkeypatch: pytest.MonkeyPatch
):
    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError("Couldn't reach 'hens/barn' on the Hub")

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    with pytest.raises(
        UserError, match=r"hen_choice cannot be loaded \(.*Couldn't reach .*\)\. Without a network, .*=1$"
    ):
        list(task_scores(adapter(checkpoint), *find_tasks(["hen_choice"], tasks), limit=None))


def test_the_command_prints_and_tables_the_scores(checkpoint: Pretrained, tasks: Path):
    arguments = ("eval", checkpoint.directory, "--tasks", "hen_choice,hen_text", "--include-path", tasks)
    found = json.loads(run_here(*arguments, "--limit", 2, "--json")[0])
    assert [(score["task"], score["metric"]) for score in found["scores"]] == [
        ("hen_choice", "acc"),
        ("hen_choice", "acc_norm"),
        ("hen_text", "word_perplexity"),
        ("hen_text", "bits_per_byte"),
    ]
    settings = found["settings"]
    assert (settings["limit"], settings["context"], found["padding_rows"]) == (2, 32, 39)
    assert (settings["include_path"], settings["trained_length"]) == (str(tasks.resolve()), 32), (
        "no published benchmark"
    )
    table, _ = run_here(*arguments)
    assert re.search(r"hen_choice +acc +0\.\d{4} +0\.\d{4} +3 +0", table)


@pytest.mark.slow  # imports transformers
def test_the_scores_are_those_of_the_harness_on_the_hugging_face_export(tmp_path: Path, tasks: Path):
    for needed in ("transformers", "accelerate", "peft"):
        pytest.importorskip(needed)
    from lm_eval.models.huggingface import HFLM

    from stages.huggingface.export import export_huggingface

    write_pretrained(tmp_path / "final")  # without padding rows, which HFLM leaves in the softmax
    opened = load_pretrained(tmp_path / "final")
    with torch.no_grad():
        for parameter in opened.model.parameters():
            parameter.mul_(2)  # so that scores differ clearly between answers
    export_huggingface(opened, tmp_path / "export", card=lambda export: "", check=False)
    theirs = HFLM(
        pretrained=str(tmp_path / "export"), trust_remote_code=True, device="cpu", batch_size=2, dtype="float32"
    )
    manager, found = find_tasks(["hen_choice", "hen_lambada", "hen_text", "hen_generation"], tasks)
    ours_scores, their_scores = ([*task_scores(lm, manager, found, None)] for lm in (adapter(opened), theirs))
    assert [replace(score, value=0.0, standard_error=0.0) for score in ours_scores] == [
        replace(score, value=0.0, standard_error=0.0) for score in their_scores
    ]
    for own, their in zip(ours_scores, their_scores, strict=True):
        assert own.value == pytest.approx(their.value, rel=1e-5, abs=1e-5), own
    prompts = requests("generate_until", *((text, {"until": ["."], "max_gen_toks": 6}) for text in TEXTS))
    assert adapter(opened).generate_until(prompts) == theirs.generate_until(prompts, disable_tqdm=True)
