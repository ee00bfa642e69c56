"""lm-evaluation-harness on a checkpoint in memory: log-probabilities, text and the scores of local tasks.

Importing lm_eval takes seconds, so everything that needs it is in this file.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("lm_eval", reason="lm-eval, of the extra `eval`, is not installed")

from model.errors import UserError
from stages.checkpoint.pretrained import Pretrained, load_pretrained
from stages.evaluate.harness import GrowctlLM, generation_settings
from stages.evaluate.tasks import find_tasks, task_scores
from stages.generate.generate import generate
from stages.generate.settings import GREEDY, GenerationSettings, Sampling
from tests.growctl.runs import run_here
from tests.pretrained import adding_tokenizer, byte_tokenizer, text_config, write_pretrained

TASKS = {
    "hen_choice": """
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}, {metric: acc_norm}]""",
    "hen_lambada": """
output_type: loglikelihood
doc_to_text: "{{text.split(' ')[:-1]|join(' ')}}"
doc_to_target: "{{' '+text.split(' ')[-1]}}"
metric_list: [{metric: perplexity}, {metric: acc}]""",
    "hen_text": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]""",
}
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
    choices = [" hen", " in the inn", "."]
    rows = [{"question": text, "text": text, "choices": choices, "answer": i % 3} for i, text in enumerate(TEXTS)]
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = f"dataset_path: json\ndataset_kwargs: {{data_files: {folder}/texts.jsonl}}\ntest_split: train"
    for name, definition in TASKS.items():
        (folder / f"{name}.yaml").write_text(f"task: {name}\n{data}{definition}\n")
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


def requests(*arguments: tuple[Any, ...]) -> list[Any]:
    from lm_eval.api.instance import Instance

    return [Instance(request_type="loglikelihood", doc={}, arguments=args, idx=i) for i, args in enumerate(arguments)]


def continued(checkpoint: Pretrained, text: str, num_tokens: int, **settings: Any) -> str:
    """What `generate` writes after the end of a text, which leaves room in the context."""
    kept = byte_tokenizer().decode(byte_tokenizer().encode(text).ids[-(32 - num_tokens) :])
    wanted = GenerationSettings(max_new_tokens=num_tokens, sampling=GREEDY, **settings)
    return generate(checkpoint, kept, wanted).samples[0].text


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
    for batch_size in (1, 5):
        found = adapter(checkpoint, batch_size).loglikelihood(requests(*pairs), disable_tqdm=True)
        assert [score for score, _ in found] == pytest.approx([score for score, _ in expected], rel=1e-5)
        assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    tokens = generate(checkpoint, "the hen", GenerationSettings(max_new_tokens=4, sampling=GREEDY)).samples[0].tokens
    [(_, is_greedy)] = adapter(checkpoint)._loglikelihood_tokens([(None, encode("the hen").ids, [*tokens])])
    assert is_greedy is True


def test_generated_text_is_that_of_generate_whatever_the_batch(checkpoint: Pretrained):
    prompts = requests(*((text, {"until": ["."], "max_gen_toks": 6}) for text in TEXTS))
    expected = [continued(checkpoint, text, 6, stop=(".",)) for text in TEXTS]
    for batch_size in (1, 3):
        assert adapter(checkpoint, batch_size).generate_until(prompts) == expected
    prompts = requests((TEXTS[2], {"until": []}))  # half of the context is for new tokens
    assert adapter(checkpoint).generate_until(prompts) == [continued(checkpoint, TEXTS[2], 16)]


SAMPLED = {"until": ["."], "max_gen_toks": 6, "do_sample": True, "temperature": 1.0}


def test_sampled_text_depends_on_its_prompt_and_on_how_often_it_came_before_alone(checkpoint: Pretrained):
    prompts = requests(*((text, SAMPLED) for text in TEXTS))
    prompts += [prompts[0]] * 3  # as lm_eval repeats requests
    expected = adapter(checkpoint, batch_size=1).generate_until(prompts)
    assert len({expected[0], *expected[3:]}) > 1
    assert adapter(checkpoint, batch_size=3).generate_until(prompts) == expected
    assert adapter(checkpoint).generate_until(prompts[1:3]) == expected[1:3]


@pytest.mark.parametrize(
    ("asked", "sampling"),
    [
        ({}, GREEDY),
        ({"do_sample": True}, Sampling(temperature=1.0)),
        ({"temperature": 0.7, "top_k": 5, "top_p": 0.9}, Sampling(temperature=0.7, top_k=5, top_p=0.9)),
    ],
)
def test_what_a_task_asks_of_generation_is_translated_or_refused(asked: dict[str, Any], sampling: Sampling):
    assert generation_settings("poems", asked).sampling == sampling
    with pytest.raises(UserError, match="num_beams: 4"):
        generation_settings("poems", asked | {"num_beams": 4})


def test_what_cannot_be_scored_gets_one_message(checkpoint: Pretrained):
    too_long = requests(("the", "x" * 33))
    with pytest.raises(UserError, match=r"33 tokens does not .* context of 32"):
        adapter(checkpoint).loglikelihood(too_long, disable_tqdm=True)
    text = checkpoint.text.model_copy(update={"end_of_text_id": None})
    with pytest.raises(UserError, match="its tokenizer has no end of text"):
        adapter(checkpoint._replace(manifest=checkpoint.manifest.model_copy(update={"text": text})))


def test_the_command_scores_the_first_examples_of_the_tasks_that_a_pattern_matches(checkpoint: Pretrained, tasks: Path):
    arguments = ("eval", checkpoint.directory, "--tasks", "hen_c*,hen_text", "--include-path", tasks)
    found = json.loads(run_here(*arguments, "--limit", 2, "--json")[0])
    scores = [(score["task"], score["metric"], score["num_samples"]) for score in found["scores"]]
    assert scores == [
        *(("hen_choice", metric, 2) for metric in ("acc", "acc_norm")),
        *(("hen_text", metric, 2) for metric in ("word_perplexity", "bits_per_byte")),
    ]
    assert found["settings"].items() >= {"limit": 2, "context": 32, "include_path": str(tasks.resolve())}.items()


@pytest.mark.slow  # imports transformers
@pytest.mark.parametrize("begin", [None, "a"])
def test_the_scores_are_those_of_the_harness_on_the_hugging_face_export(tmp_path: Path, tasks: Path, begin: str | None):
    for needed in ("transformers", "accelerate", "peft"):
        pytest.importorskip(needed)
    from lm_eval.models.huggingface import HFLM

    from stages.huggingface.export import export_huggingface

    # without padding rows, which HFLM leaves in the softmax
    write_pretrained(tmp_path / "final", tokenizer=adding_tokenizer(begin) if begin else None, begin_of_text=begin)
    opened = load_pretrained(tmp_path / "final")
    with torch.no_grad():
        for parameter in opened.model.parameters():
            parameter.mul_(2)  # so that scores differ clearly between answers
    export_huggingface(opened, tmp_path / "export", card=lambda export: "", check=False)
    settings: dict[str, Any] = {"device": "cpu", "batch_size": 2, "dtype": "float32"}
    theirs = HFLM(pretrained=str(tmp_path / "export"), trust_remote_code=True, **settings)
    manager, found = find_tasks(list(TASKS), tasks)
    ours_scores, their_scores = ([*task_scores(lm, manager, found, None)] for lm in (adapter(opened), theirs))
    for own, their in zip(ours_scores, their_scores, strict=True):
        assert own.value == pytest.approx(their.value, rel=1e-5, abs=1e-5), own
        assert replace(own, value=0.0, standard_error=0.0) == replace(their, value=0.0, standard_error=0.0)
    prompts = requests(*((text, {"until": ["."], "max_gen_toks": 6}) for text in TEXTS))
    assert adapter(opened).generate_until(prompts) == theirs.generate_until(prompts, disable_tqdm=True)
