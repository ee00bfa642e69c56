"""The command `generate`: continues prompts with a checkpoint. Slow modules are imported on use."""

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from growctl.cli.options import (
    DEFAULT_RUNS_DIR,
    AsJson,
    CheckpointName,
    DeviceName,
    DtypeName,
    RunsDir,
    TokenizerFile,
    TopKNorm,
    TopKTokens,
    from_options,
    top_tokens,
    unusable,
)
from growctl.text.escaping import say, visible

if TYPE_CHECKING:
    from stages.checkpoint.pretrained import Pretrained
    from stages.generate.generate import OnText
    from stages.generate.settings import GeneratedText, GenerationSettings


def generate(
    checkpoint: CheckpointName,
    prompt: Annotated[
        str | None,
        typer.Argument(
            help="Text to continue; - reads it from standard input, without its last line feed (the default if that "
            "is not a terminal). An empty prompt begins a new text.",
            metavar="PROMPT",
        ),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens to generate for each sample, at most.", min=1)] = 100,
    temperature: Annotated[
        float | None,
        typer.Option(help="Below 1: likelier tokens even more often; 0: always the likeliest (default: 0.8).", min=0),
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Choose among the k likeliest tokens.", min=1)] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Choose among the likeliest tokens whose probabilities sum to this, above 0.", min=0, max=1),
    ] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always choose the likeliest token.")] = False,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal text.", min=0)] = 0,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; repeatable.", metavar="TEXT")] = None,
    samples: Annotated[int, typer.Option(help="Continuations of the prompt.", min=1)] = 1,
    context_length: Annotated[
        int | None,
        typer.Option(
            help="Tokens of prompt and text together, at most (default: the length of the training sequences).", min=2
        ),
    ] = None,
    top_k_tokens: TopKTokens = None,
    top_k_norm: TopKNorm = None,
    tokenizer: TokenizerFile = None,
    device: DeviceName = "auto",
    dtype: DtypeName = "float32",
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """Continue a text with a checkpoint. The text goes to standard output as it is made, statistics to standard error.

    Example: growctl generate quickstart "def " --temperature 0.6 --samples 3
    """
    from growctl.evaluate.pretrained import open_pretrained
    from growctl.text.documents import print_document
    from stages.generate.settings import GenerationSettings, Sampling

    chosen = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    given = [name.replace("_", "-") for name, value in chosen.items() if value is not None]
    if greedy and given:
        raise unusable(f"--greedy always chooses the likeliest token; leave out --{given[0]}")
    sampling = from_options(Sampling, {"seed": seed, **chosen, **({"temperature": 0.0} if greedy else {})})
    tops = top_tokens(top_k_tokens, top_k_norm)
    if len(tops) > 1:
        raise unusable(f"--top-k-tokens {top_k_tokens}: a text has one number of parameter tokens; give one")
    lengths = {"max_new_tokens": max_new_tokens, "num_samples": samples, "context_length": context_length}
    of_model = {"sampling": sampling, "stop": tuple(stop or ()), "top_tokens": next(iter(tops), None)}
    settings = from_options(GenerationSettings, of_model | lengths)
    text = _prompt(prompt)
    with open_pretrained(checkpoint, runs_dir, tokenizer=tokenizer, device=device, dtype=dtype) as pretrained:
        if as_json:
            print_document(_generate(pretrained, text, settings))
        else:
            _print_generation(pretrained, text, settings)


def _prompt(given: str | None) -> str:
    """The prompt, from standard input if `given` is `-`, or if there is none and standard input is not a terminal."""
    if given not in (None, "-"):
        data = os.fsencode(given)
    elif sys.stdin is None or (given is None and sys.stdin.isatty()):
        raise unusable("there is no prompt; give one, or pipe one in")
    else:
        data = sys.stdin.buffer.read().removesuffix(b"\n").removesuffix(b"\r")
    try:
        return data.decode()
    except UnicodeError as error:
        raise unusable(f"the prompt is not valid UTF-8 ({error})") from None


def _print_generation(pretrained: "Pretrained", prompt: str, settings: "GenerationSettings") -> None:
    """Prints the prompt and its continuations. A single sample is printed as it grows, several once all are done."""
    from stages.counted import counted

    if settings.num_samples == 1:
        unprinted = [prompt]  # until there is text: a prompt that is rejected is not printed

        def show_more(_: int, text: str) -> None:
            _show("".join(unprinted) + text)
            unprinted.clear()

        generation = _generate(pretrained, prompt, settings, show_more)
        _show("".join(unprinted) + "\n")
    else:
        generation = _generate(pretrained, prompt, settings)
        for number, sample in enumerate(generation.samples, 1):
            _show(f"--- sample {number} of {len(generation.samples)} ---\n{prompt}{sample.text}\n")
    ends = ", ".join(dict.fromkeys(sample.finish_reason.replace("_", " ") for sample in generation.samples))
    say(
        f"{counted(generation.num_tokens, 'token')} in {generation.wall_seconds:.2f} s "
        f"({generation.tokens_per_second:,.0f} tokens/s), ended by {ends}",
        error=True,
    )


def _generate(
    pretrained: "Pretrained", prompt: str, settings: "GenerationSettings", on_text: "OnText | None" = None
) -> "GeneratedText":
    """Generates, and names the option that allows a longer context in the error that needs it."""
    from stages.generate.generate import PromptTooLong
    from stages.generate.generate import generate as generate_text

    try:
        return generate_text(pretrained, prompt, settings, on_text)
    except PromptTooLong as error:
        raise unusable(f"{error}, or allow a longer context with --context-length") from None


def _show(text: str) -> None:
    """Prints text without control characters."""
    print(visible(text), end="", flush=True)
