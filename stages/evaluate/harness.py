"""A finished checkpoint as a model of lm-evaluation-harness, computed in this process.

Imports lm_eval, which is installed with the extra `eval`. Shapes: B batch, T sequence, D model width, M targets.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from model.errors import UserError
from model.language_model import LanguageModel
from model.loss import token_scores
from stages.checkpoint.pretrained import Pretrained
from stages.evaluate.replicas import Replicas, device_of
from stages.evaluate.text import OnProgress
from stages.generate.decode import decode
from stages.generate.sampling import Sampling
from stages.generate.text_stream import TextStream

Request = tuple[tuple[str, str] | None, list[int], list[int]]
"""What lm_eval asks for: the strings (None for a part of a longer text), context ids, and continuation ids."""

DEFAULT_NEW_TOKENS = 256
"""Tokens to generate for a task that does not say how many, as in lm_eval's own models."""


class _Scored(NamedTuple):
    log_probability: float
    is_greedy: bool
    """Whether greedy decoding would have produced the continuation."""


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

    def _loglikelihood_tokens(
        self, requests: Sequence[Request], disable_tqdm: bool = False, **ignored: Any
    ) -> list[tuple[float, bool]]:
        """The log-probability of each continuation, and whether it is the greedy one.

        Longest first, so that a batch holds requests of similar length and memory runs out at once if it does. A
        context that is too long loses its beginning. Raises UserError if a continuation alone is too long.
        """
        for _, _, continuation in requests:
            if len(continuation) > self._context:
                raise UserError(
                    f"a continuation of {len(continuation)} tokens does not fit into the context of {self._context}; "
                    "leave out the task, or allow a longer context with --context N"
                )
        order = sorted(range(len(requests)), key=lambda index: -len(requests[index][1]) - len(requests[index][2]))
        found: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
        batches = self._in_batches([requests[index] for index in order])
        scores = (scored for batch in self._replicas.map(self._score, batches) for scored in batch)
        for index, scored in zip(order, scores, strict=True):
            found[index] = (scored.log_probability, scored.is_greedy)
            if strings := requests[index][0]:
                self.cache_hook.add_partial("loglikelihood", strings, found[index])
        return found

    def _in_batches(self, requests: Sequence[Any]) -> Iterator[Sequence[Any]]:
        for start in range(0, len(requests), self._batch_size):
            self._on_progress(start / len(requests))
            yield requests[start : start + self._batch_size]

    def _score(self, model: LanguageModel, requests: Sequence[Request]) -> list[_Scored]:
        rows = [(context + continuation)[-self._context - 1 :] for _, context, continuation in requests]
        counts = [len(continuation) for *_, continuation in requests]
        longest = max(len(row) - 1 for row in rows)
        input_BT = torch.zeros(len(rows), longest, dtype=torch.int64)
        is_target_BT = torch.zeros(len(rows), longest, dtype=torch.bool)
        for number, (row, count) in enumerate(zip(rows, counts, strict=True)):
            input_BT[number, : len(row) - 1] = torch.tensor(row[:-1])
            is_target_BT[number, len(row) - 1 - count : len(row) - 1] = True
        targets_M = torch.tensor([target for row, count in zip(rows, counts, strict=True) for target in row[-count:]])
        device = device_of(model)
        with torch.inference_mode():
            x_MD = model.hidden_states(input_BT.to(device))[is_target_BT.to(device)]
            weight_VD = model.embedding.weight[: self._checkpoint.num_token_ids]
            scores = token_scores(x_MD, weight_VD, targets_M.to(device))
        losses = scores.loss_M.double().cpu().split(counts)
        likeliest = scores.is_likeliest_M.cpu().split(counts)
        return [
            _Scored(-loss_m.sum().item(), bool(right_m.all()))
            for loss_m, right_m in zip(losses, likeliest, strict=True)
        ]

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of whole texts, each in windows that do not overlap, after an end of text."""
        windows: list[Request] = []
        counts = []
        for (text,) in (request.args for request in requests):
            found = get_rolling_token_windows(self.tok_encode(text), self.prefix_token_id, self._context, context_len=1)
            own = [(None, *make_disjoint_window(window)) for window in found]
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
        beginning. If a task wants more tokens than the context holds, it gets half of the context.
        """
        found: list[str] = [""] * len(requests)
        groups: dict[str, list[tuple[int, list[int]]]] = {}
        for index, request in enumerate(requests):
            ids = self.tok_encode(request.args[0]) or [self._end_of_text_id]
            groups.setdefault(repr(request.args[1]), []).append((index, ids))
        for group in groups.values():
            group.sort(key=lambda item: -len(item[1]))
            settings = normalize_gen_kwargs(requests[group[0][0]].args[1], DEFAULT_NEW_TOKENS)

            def continued(
                model: LanguageModel, batch: Sequence[tuple[int, list[int]]], settings: Any = settings
            ) -> list[tuple[int, str]]:
                texts = self._continued(model, [ids for _, ids in batch], settings)
                return [(index, text) for (index, _), text in zip(batch, texts, strict=True)]

            for batch in self._replicas.map(continued, self._in_batches(group)):
                for index, text in batch:
                    found[index] = text
                    self.cache_hook.add_partial("generate_until", requests[index].args, text)
        return found

    def _continued(self, model: LanguageModel, prompts: list[list[int]], settings: Any) -> list[str]:
        num_new = settings["max_gen_toks"] if settings["max_gen_toks"] < self._context else max(1, self._context // 2)
        prompts = [ids[-(self._context - num_new) :] for ids in prompts]
        sampling = Sampling(
            temperature=float(settings.get("temperature") or 0.0),
            top_p=float(settings.get("top_p") or 1.0),
            top_k=settings.get("top_k") or None,
        )
        streams = [TextStream(self._checkpoint.tokenizer, ids, settings["until"]) for ids in prompts]
        texts, running = [""] * len(prompts), set(range(len(prompts)))
        for tokens in decode(model, prompts, num_new, sampling, num_token_ids=self._checkpoint.num_token_ids):
            for row in sorted(running):
                if tokens[row] == self._end_of_text_id:
                    running.discard(row)
                    continue
                texts[row] += streams[row].push(tokens[row])
                if streams[row].stopped:
                    running.discard(row)
            if not running:
                break
        return [text + ("" if stream.stopped else stream.finish()) for text, stream in zip(texts, streams, strict=True)]
