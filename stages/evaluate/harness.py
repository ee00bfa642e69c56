"""A finished checkpoint as a model of lm-evaluation-harness, computed in this process.

Imports lm_eval, which is installed with the extra `eval`. Shapes: B batch, T sequence, D model width, M targets.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from pydantic import ValidationError

from model.errors import UserError
from model.loss import token_scores
from model.strict import first_reason
from stages.checkpoint.pretrained import Pretrained
from stages.counted import counted
from stages.evaluate.text import OnProgress
from stages.generate.generate import continue_rows
from stages.generate.settings import GenerationSettings, Sampling

Request = TypeVar("Request")
Result = TypeVar("Result")

Continuation = tuple[tuple[str, str] | None, list[int], list[int]]
"""What lm_eval asks for: the strings (None for a part of a longer text), context ids, and continuation ids."""

Scored = tuple[float, bool]
"""The log-probability of a continuation, and whether greedy decoding would have produced it."""

Prompt = tuple[list[int], str]
"""Token ids, and the name of the random numbers of the text: the prompt, and how often it came before."""

DEFAULT_NEW_TOKENS = 256
"""Tokens to generate for a task that does not say how many, as in lm_eval's own models."""


class GrowctlLM(TemplateLM):
    """Log-probabilities and text of a checkpoint, as lm_eval asks for them."""

    def __init__(
        self, checkpoint: Pretrained, *, context: int, batch_size: int, on_progress: OnProgress = lambda fraction: None
    ) -> None:
        """Raises UserError if the tokenizer has no end of text, which stands before a text if nothing else does."""
        super().__init__()
        if checkpoint.text.end_of_text_id is None:
            raise UserError(
                f"{checkpoint.directory}: its tokenizer has no end of text, which tasks need as the start of a text"
            )
        self._end_of_text_id = checkpoint.text.end_of_text_id
        self._checkpoint = checkpoint
        self._context = context
        self._batch_size = batch_size
        self._on_progress = on_progress

    @property
    def eot_token_id(self) -> int:
        """The id of the end of text."""
        return self._end_of_text_id

    @property
    def prefix_token_id(self) -> int:
        """The id before a text without context: that of the beginning of text, or else of the end of text."""
        begin = self._checkpoint.text.begin_of_text_id
        return self._end_of_text_id if begin is None else begin

    @property
    def max_length(self) -> int:
        """The most tokens that the model reads at once."""
        return self._context

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **ignored: Any) -> list[int]:
        """The token ids of `string`, after the beginning of text if the model has one, as training put it there."""
        if add_special_tokens is None or add_special_tokens:
            return self._checkpoint.encode(string)
        ids: list[int] = self._checkpoint.tokenizer.encode(string, add_special_tokens=False).ids
        return ids

    def _loglikelihood_tokens(
        self, requests: Sequence[Continuation], disable_tqdm: bool = False, **ignored: Any
    ) -> list[Scored]:
        """A context that is too long loses its beginning. Raises UserError if a continuation alone is too long."""
        longest = max((len(continuation) for _, _, continuation in requests), default=0)
        if longest > self._context:
            raise UserError(
                f"a continuation of {counted(longest, 'token')} does not fit into the context of {self._context}; "
                "leave out the task, or allow a longer context with --context N"
            )
        return self._longest_first(requests, lambda request: len(request[1]) + len(request[2]), self._score)

    def _longest_first(
        self,
        requests: Sequence[Request],
        length: Callable[[Request], int],
        work: Callable[[Sequence[Request]], list[Result]],
    ) -> list[Result]:
        """The results of `work` in the order of `requests`. A batch holds requests of similar length, the longest
        first, so that memory runs out at once if it does."""
        order = sorted(range(len(requests)), key=lambda index: -length(requests[index]))
        results: dict[int, Result] = {}
        for start in range(0, len(order), self._batch_size):
            self._on_progress(start / len(order))
            batch = order[start : start + self._batch_size]
            results |= zip(batch, work([requests[index] for index in batch]), strict=True)
        return [results[index] for index in range(len(requests))]

    def _score(self, requests: Sequence[Continuation]) -> list[Scored]:
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
        model = self._checkpoint.model
        device = model.embedding.weight.device
        with torch.inference_mode():
            x_MD = model.hidden_states(input_BT.to(device))[is_target_BT.to(device)]
            weight_VD = model.head_weight[: self._checkpoint.num_token_ids]
            scores = token_scores(x_MD, weight_VD, torch.tensor(targets, dtype=torch.int64, device=device))
        losses = scores.loss_M.double().cpu().split(counts)
        likeliest = scores.is_likeliest_M.cpu().split(counts)
        return [(-loss_m.sum().item(), bool(right_m.all())) for loss_m, right_m in zip(losses, likeliest, strict=True)]

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of whole texts, each in windows that do not overlap, after the prefix token. As
        in lm_eval's own class, a beginning of text counts as a token of the text too."""
        windows: list[list[Continuation]] = []
        for (text,) in (request.args for request in requests):
            parts = get_rolling_token_windows(self.tok_encode(text), self.prefix_token_id, self._context, context_len=1)
            windows.append([(None, *make_disjoint_window(part)) for part in parts])
        scores = iter(self._loglikelihood_tokens([window for own in windows for window in own]))
        return [sum(next(scores)[0] for _ in own) for own in windows]

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """The text that continues each prompt, up to a stop string, the end of text, or the most tokens allowed.

        Prompts with the same settings are generated in batches, with a KV cache. A prompt that is too long loses its
        beginning. If a task wants more tokens than the context holds, it gets half of the context. Each text draws its
        own random numbers: they depend on its prompt alone, and on how often the same prompt came before.

        Raises UserError if a task asks for a way to generate that growctl does not have.
        """
        times: Counter[str] = Counter()
        groups: dict[GenerationSettings, list[int]] = {}
        prompts: list[Prompt] = []
        for index, request in enumerate(requests):
            prompt, asked = request.args
            times[prompt] += 1
            prompts.append((self.tok_encode(prompt) or [self._end_of_text_id], f"{times[prompt]}/{prompt}"))
            groups.setdefault(generation_settings(request.task_name or "", asked), []).append(index)
        texts = dict[int, str]()
        for settings, indices in groups.items():
            work = partial(self._continued, settings=settings)
            own = [prompts[index] for index in indices]
            texts |= zip(indices, self._longest_first(own, lambda prompt: len(prompt[0]), work), strict=True)
        return [texts[index] for index in range(len(requests))]

    def _continued(self, prompts: Sequence[Prompt], settings: GenerationSettings) -> list[str]:
        num_new = settings.max_new_tokens if settings.max_new_tokens < self._context else max(1, self._context // 2)
        ids = [ids[-(self._context - num_new) :] for ids, _ in prompts]
        names = [name for _, name in prompts]
        rows = continue_rows(self._checkpoint, ids, settings, num_new, names)
        return [row.text for row in rows]


def generation_settings(task: str, asked: Mapping[str, Any]) -> GenerationSettings:
    """The `generation_kwargs` of a task, which have the names of Transformers.

    Raises UserError that names the first one that growctl does not have.
    """
    left = dict(normalize_gen_kwargs(dict(asked), DEFAULT_NEW_TOKENS))
    until, max_new_tokens, samples = left.pop("until"), left.pop("max_gen_toks"), left.pop("do_sample")
    temperature, top_k = left.pop("temperature", 1.0), left.pop("top_k", None)
    fields = {"temperature": temperature if samples else 0.0, "top_k": top_k if top_k and top_k > 0 else None}
    if (top_p := left.pop("top_p", None)) is not None:
        fields["top_p"] = top_p
    for name, value in left.items():
        if value not in (None, 1, True):  # one beam, a penalty of 1.0 and a cache ask for nothing
            raise UserError(f"--tasks {task}: growctl cannot generate with {name}: {value}, as its YAML file asks")
    try:
        sampling = Sampling.model_validate(fields)
        return GenerationSettings(max_new_tokens=max_new_tokens, stop=tuple(filter(None, until)), sampling=sampling)
    except ValidationError as error:
        place = error.errors()[0]["loc"][0]
        raise UserError(f"--tasks {task}: generation_kwargs.{place}: {first_reason(error)}") from error
