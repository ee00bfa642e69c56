"""A finished checkpoint as a model of lm-evaluation-harness, computed in this process.

Imports lm_eval, which is installed with the extra `eval`. Shapes: B batch, T sequence, D model width, M targets.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from pydantic import ValidationError

from model.errors import UserError
from model.language_model import LanguageModel
from model.loss import token_scores
from model.strict import first_reason
from stages.checkpoint.pretrained import Pretrained
from stages.counted import counted
from stages.evaluate.replicas import Replicas, device_of
from stages.evaluate.text import OnProgress
from stages.generate.decode import decode
from stages.generate.generate import Row
from stages.generate.settings import GenerationSettings, Sampling

Request = tuple[tuple[str, str] | None, list[int], list[int]]
"""What lm_eval asks for: the strings (None for a part of a longer text), context ids, and continuation ids."""

Scored = tuple[float, bool]
"""The log-probability of a continuation, and whether greedy decoding would have produced it."""

DEFAULT_NEW_TOKENS = 256
"""Tokens to generate for a task that does not say how many, as in lm_eval's own models."""

WITHOUT_EFFECT = {
    "num_beams": 1,
    "num_return_sequences": 1,
    "repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "use_cache": True,
}
"""Settings of Transformers that ask for nothing at these values."""


class _Prompt(NamedTuple):
    request: int
    """Its index."""
    ids: list[int]
    draws: str
    """Names the random numbers of its text: the prompt, and how often it came before."""


class GrowctlLM(TemplateLM):
    """Log-probabilities and text of a checkpoint, as lm_eval asks for them."""

    def __init__(
        self,
        checkpoint: Pretrained,
        replicas: Replicas,
        *,
        context: int,
        batch_size: int,
        on_progress: OnProgress = lambda fraction: None,
    ) -> None:
        """Raises UserError if the tokenizer has no end of text, which stands before each text."""
        super().__init__()
        if checkpoint.text.end_of_text_id is None:
            raise UserError(
                f"{checkpoint.directory}: its tokenizer has no end of text, which tasks need as the start of a text"
            )
        self._end_of_text_id = checkpoint.text.end_of_text_id
        self._checkpoint = checkpoint
        self._replicas = replicas
        self._context = context
        self._batch_size = batch_size
        self._on_progress = on_progress

    @property
    def eot_token_id(self) -> int:
        """The id of the end of text. It also stands before a text without context."""
        return self._end_of_text_id

    @property
    def max_length(self) -> int:
        """The most tokens that the model reads at once."""
        return self._context

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **ignored: Any) -> list[int]:
        """The token ids of `string`, never with added special tokens: growctl trains without them."""
        ids: list[int] = self._checkpoint.tokenizer.encode(string, add_special_tokens=False).ids
        return ids

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[Scored]:
        """The log-probability of each continuation, and whether it is the greedy one; of an empty one 0 and True."""
        asked = [request for request in requests if any(request.args)]  # lm_eval stumbles over two empty strings
        scores = iter(super().loglikelihood(asked, disable_tqdm=True))
        return [next(scores) if any(request.args) else (0.0, True) for request in requests]

    def _loglikelihood_tokens(
        self, requests: Sequence[Request], disable_tqdm: bool = False, **ignored: Any
    ) -> list[Scored]:
        """Longest first, so that a batch holds requests of similar length and memory runs out at once if it does. A
        context that is too long loses its beginning. Raises UserError if a continuation alone is too long."""
        for _, _, continuation in requests:
            if len(continuation) > self._context:
                raise UserError(
                    f"a continuation of {counted(len(continuation), 'token')} does not fit into the context of "
                    f"{self._context}; leave out the task, or allow a longer context with --context N"
                )
        order = sorted(range(len(requests)), key=lambda index: -len(requests[index][1]) - len(requests[index][2]))
        results: list[Scored] = [(0.0, False)] * len(requests)
        batches = self._in_batches([requests[index] for index in order])
        scores = (scored for batch in self._replicas.map(self._score, batches) for scored in batch)
        for index, scored in zip(order, scores, strict=True):
            results[index] = scored
            if strings := requests[index][0]:
                self.cache_hook.add_partial("loglikelihood", strings, scored)
        return results

    def _in_batches(self, requests: Sequence[Any]) -> Iterator[Sequence[Any]]:
        for start in range(0, len(requests), self._batch_size):
            self._on_progress(start / len(requests))
            yield requests[start : start + self._batch_size]

    def _score(self, model: LanguageModel, requests: Sequence[Request]) -> list[Scored]:
        rows = [(context + continuation)[-self._context - 1 :] for _, context, continuation in requests]
        counts = [len(continuation) for *_, continuation in requests]
        longest = max(len(row) - 1 for row in rows)
        input_BT = torch.zeros(len(rows), longest, dtype=torch.int64)
        is_target_BT = torch.zeros(len(rows), longest, dtype=torch.bool)
        targets: list[int] = []
        for number, (row, count) in enumerate(zip(rows, counts, strict=True)):
            input_BT[number, : len(row) - 1] = torch.tensor(row[:-1])
            is_target_BT[number, len(row) - 1 - count : len(row) - 1] = True
            targets += row[len(row) - count :]
        device = device_of(model)
        with torch.inference_mode():
            x_MD = model.hidden_states(input_BT.to(device))[is_target_BT.to(device)]
            weight_VD = model.embedding.weight[: self._checkpoint.num_token_ids]
            scores = token_scores(x_MD, weight_VD, torch.tensor(targets, dtype=torch.int64, device=device))
        losses = scores.loss_M.double().cpu().split(counts)
        likeliest = scores.is_likeliest_M.cpu().split(counts)
        return [(-loss_m.sum().item(), bool(right_m.all())) for loss_m, right_m in zip(losses, likeliest, strict=True)]

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of whole texts, each in windows that do not overlap, after an end of text."""
        windows: list[Request] = []
        counts = []
        for (text,) in (request.args for request in requests):
            parts = get_rolling_token_windows(self.tok_encode(text), self.prefix_token_id, self._context, context_len=1)
            own = [(None, *make_disjoint_window(part)) for part in parts]
            windows += own
            counts.append(len(own))
        scores = iter(self._loglikelihood_tokens(windows))
        sums = [sum(next(scores)[0] for _ in range(count)) for count in counts]
        for request, total in zip(requests, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return sums

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """The text that continues each prompt, up to a stop string, the end of text, or the most tokens allowed.

        Prompts with the same settings are generated in batches, with a KV cache. A prompt that is too long loses its
        beginning. If a task wants more tokens than the context holds, it gets half of the context. Each text draws its
        own random numbers: they depend on its prompt alone, and on how often the same prompt came before.

        Raises UserError if a task asks for a way to generate that growctl does not have.
        """
        texts = [""] * len(requests)
        times: Counter[str] = Counter()
        groups: dict[str, tuple[GenerationSettings, list[_Prompt]]] = {}
        for index, request in enumerate(requests):
            prompt, asked = request.args
            ids = self.tok_encode(prompt) or [self._end_of_text_id]
            times[prompt] += 1
            key = repr(asked)
            if key not in groups:
                groups[key] = generation_settings(request.task_name or "", asked), []
            groups[key][1].append(_Prompt(index, ids, f"{times[prompt]}/{prompt}"))
        for settings, prompts in groups.values():
            prompts.sort(key=lambda prompt: -len(prompt.ids))
            work = partial(self._continued, settings=settings)
            for batch in self._replicas.map(work, self._in_batches(prompts)):
                for index, text in batch:
                    texts[index] = text
                    self.cache_hook.add_partial("generate_until", requests[index].args, text)
        return texts

    def _continued(
        self, model: LanguageModel, batch: Sequence[_Prompt], settings: GenerationSettings
    ) -> list[tuple[int, str]]:
        """The index of each request, and its text."""
        num_new = settings.max_new_tokens if settings.max_new_tokens < self._context else max(1, self._context // 2)
        prompts = [prompt.ids[-(self._context - num_new) :] for prompt in batch]
        rows = [Row(self._checkpoint, ids, settings.stop) for ids in prompts]
        num_ids, draws = self._checkpoint.num_token_ids, [prompt.draws for prompt in batch]
        for tokens in decode(model, prompts, num_new, settings.sampling, num_token_ids=num_ids, rows=draws):
            for row, token in zip(rows, tokens, strict=True):
                row.add(token)
            if all(row.finish_reason for row in rows):
                break
        for row in rows:
            row.end("length")
        return [(prompt.request, row.text) for prompt, row in zip(batch, rows, strict=True)]


def generation_settings(task: str, asked: Mapping[str, Any]) -> GenerationSettings:
    """The `generation_kwargs` of a task, which have the names of Transformers.

    Raises UserError that names the first one that growctl does not have.
    """
    left = dict(normalize_gen_kwargs(dict(asked), DEFAULT_NEW_TOKENS))
    until, max_new_tokens = left.pop("until"), left.pop("max_gen_toks")
    samples = left.pop("do_sample")
    temperature = left.pop("temperature", 1.0) if samples else left.pop("temperature", 0.0) and 0.0
    top_k = left.pop("top_k", None)
    fields = {"top_k": top_k if top_k and top_k > 0 else None, "temperature": temperature}
    fields |= {name: left.pop(name) for name in ("top_p", "min_p") if left.get(name) is not None}
    for name, value in left.items():
        if value is not None and WITHOUT_EFFECT.get(name) != value:
            raise UserError(f"--tasks {task}: growctl cannot generate with {name}: {value}, as its YAML file asks")
    try:
        sampling = Sampling.model_validate(fields)
        return GenerationSettings(max_new_tokens=max_new_tokens, stop=tuple(filter(None, until)), sampling=sampling)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise UserError(
            f"--tasks {task}: generation_kwargs.{wrong['loc'][0]}: {wrong['input']!r}: {first_reason(error)}"
        ) from error
