"""Measures how fast a model generates with a KV cache, and without one, on one CPU thread.

    python -m benchmarks.generate > benchmarks/results/generate.json    # ten minutes
    python -m benchmarks.generate --cases quickstart --turns 3

Each turn generates the same greedy tokens twice: with the cache (stages/generate/decode.py), and by reading prompt and
text again for every token, which computes only the last position's logits too. Weights are random: they do not change
the time. Seconds are CPU time of one thread, so that other work on the machine counts little. `ratio` is the median of
the turns' ratios.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from benchmarks.machine import options, print_results
from model.config_growth import grow_config, ramp_config
from model.initialization import build_model
from model.language_model import LanguageModel
from model.shapes import num_parameters
from model.tokenformer_config import TokenformerConfig, tokenformer_config
from stages.generate.decode import decode
from stages.generate.settings import GREEDY

TURNS = 5


class Case(NamedTuple):
    """A model and how much text it writes."""

    config: TokenformerConfig
    prompt_tokens: int
    new_tokens: int


def grown(config: TokenformerConfig, *added: tuple[int, int]) -> TokenformerConfig:
    """`config` after growths by these numbers of attention and FFN tokens, with all ramps over."""
    for attention_tokens, ffn_tokens in added:
        config = ramp_config(grow_config(config, attention_tokens=attention_tokens, ffn_tokens=ffn_tokens), ramp=1.0)
    return config


def quickstart(attention_tokens: int) -> TokenformerConfig:
    """The quickstart's model with this many attention tokens."""
    return tokenformer_config(
        num_layers=3,
        attention_tokens=attention_tokens,
        ffn_tokens=4 * attention_tokens,
        vocab_size=1024,
        hidden_size=64,
        num_heads=4,
    )


def published(attention_tokens: int) -> TokenformerConfig:
    """The published shape of 12 layers with this many attention tokens."""
    return tokenformer_config(
        num_layers=12,
        attention_tokens=attention_tokens,
        ffn_tokens=4 * attention_tokens,
        vocab_size=50304,
        hidden_size=768,
        num_heads=12,
    )


CASES: dict[str, Case] = {
    "quickstart": Case(quickstart(64), 4, 60),
    "quickstart, grown twice": Case(grown(quickstart(16), (16, 64), (32, 128)), 4, 60),
    "124M": Case(published(576), 96, 32),
    "124M, grown twice": Case(grown(published(144), (144, 576), (288, 1152)), 96, 32),
}


def main() -> None:
    """Runs the benchmark and prints one JSON document."""
    parser = options(__doc__)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="models to measure")
    parser.add_argument("--turns", type=int, default=TURNS, help="turns of each")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in arguments.cases:
        rows.append({"case": name} | measured(CASES[name], arguments.turns))
        print(rows[-1], file=sys.stderr, flush=True)
    settings = {"turns": arguments.turns, "threads": 1, "dtype": "float32"}
    print_results(arguments.note, settings=settings, rows=rows)


def measured(case: Case, turns: int) -> dict[str, Any]:
    """Tokens per second of one case, with and without the cache, after one unmeasured turn."""
    model = build_model(case.config, seed=0).eval()
    prompt = torch.randint(case.config.vocab_size, (case.prompt_tokens,), generator=torch.Generator().manual_seed(0))
    pairs = [
        [seconds(generate, model, prompt.tolist(), case.new_tokens) for generate in (cached, uncached)]
        for _ in range(turns + 1)
    ][1:]
    speeds = [[case.new_tokens / each for each in pair] for pair in pairs]
    ratios = sorted(fast / slow for fast, slow in speeds)
    return {
        "num_parameters": num_parameters(case.config),
        "generations": case.config.newest_generation + 1,
        "prompt_tokens": case.prompt_tokens,
        "new_tokens": case.new_tokens,
        "tokens_per_second": round(statistics.median(fast for fast, _ in speeds), 2),
        "tokens_per_second_without_cache": round(statistics.median(slow for _, slow in speeds), 2),
        "ratio": round(statistics.median(ratios), 2),
        "ratio_range": [round(ratios[0], 2), round(ratios[-1], 2)],
    }


def seconds(
    generate: Callable[[LanguageModel, list[int], int], list[int]],
    model: LanguageModel,
    prompt: list[int],
    num_new: int,
) -> float:
    """CPU seconds that `generate` takes for `num_new` tokens."""
    start = time.process_time()
    found = generate(model, prompt, num_new)
    assert len(found) == num_new
    return time.process_time() - start


def cached(model: LanguageModel, prompt: list[int], num_new: int) -> list[int]:
    """The next tokens, as growctl generates them."""
    return [token for (token,) in decode(model, [prompt], num_new, GREEDY)]


@torch.inference_mode()
def uncached(model: LanguageModel, prompt: list[int], num_new: int) -> list[int]:
    """The next tokens, with the whole text read again for each."""
    ids = list(prompt)
    for _ in range(num_new):
        ids.append(int(model(torch.tensor([ids]), logits_to_keep=1)[0, -1].argmax()))
    return ids[len(prompt) :]


if __name__ == "__main__":
    main()
