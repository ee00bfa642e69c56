"""The questions of `growctl init --interactive`. Answers may come from a pipe."""

from collections.abc import Callable
from typing import TypeVar

import typer

from growctl.draft.recipe import BUDGETS
from growctl.draft.sizes import ladder_sizes
from growctl.draft.text_source import text_source
from growctl.draft.wish import Wish, parse_base, parse_device, parse_gpus, parse_params, parse_tokens
from growctl.plan.warnings import OPTIMAL_TOKENS
from growctl.schedule.errors import shown
from growctl.text.formatting import short_count
from model.errors import UserError

AUTO = "auto"
Answer = TypeVar("Answer")


def asked_wish(
    params: str | None,
    *,
    base: str | None,
    tokens: str | None,
    data: str | None,
    gpus: int | None,
    device: str | None,
    grow_depth: bool,
) -> Wish:
    """Asks for every part of a wish; the options given are the default answers. Asks again after an unusable answer.

    Raises UserError if the answers end too early.
    """
    size = _ask("params", "Parameters of the model that you want in the end.", params or "350M", parse_params)
    optimal = short_count(OPTIMAL_TOKENS * size)
    total = _ask(
        "tokens",
        f"Data tokens to train on, over all stages. {OPTIMAL_TOKENS:g} per parameter are compute-optimal.",
        tokens or optimal,
        parse_tokens,
    )

    def known_text(name: str) -> str | None:
        chosen = None if name == AUTO else name
        text_source(chosen, total, max(BUDGETS))
        return chosen

    text = _ask(
        "data",
        "The text: a shipped choice (python-stdlib, wikitext, openwebtext, pile), a path, a URL, or OWNER/NAME on the "
        "Hugging Face hub. auto: a shipped one that is large enough.",
        data or AUTO,
        known_text,
    )

    def fitting_base(answer: str) -> int | None:
        first = _unless_auto(answer, parse_base)
        ladder_sizes(size, first, text_source(text, total, max(BUDGETS)).vocabularies, grow_depth=grow_depth)
        return first

    first = _ask(
        "base",
        "Parameters of the first stage, which then grows by 2 to 3 times a stage. auto: the published 124M where that "
        "fits, else a fifth of the last size.",
        base or AUTO,
        fitting_base,
    )
    num_gpus = _ask(
        "gpus",
        "GPUs of the machine that will train. auto: all it has.",
        str(gpus or AUTO),
        lambda answer: _unless_auto(answer, parse_gpus),
    )
    model = _ask(
        "device",
        "The model of those GPUs, such as h100, for memory and time in the plan. auto: unknown.",
        device or AUTO,
        lambda answer: _unless_auto(answer, parse_device),
    )
    deeper = _ask(
        "grow-depth",
        "Whether the growths add layers as well as parameter tokens (yes), or tokens alone (no).",
        "yes" if grow_depth else "no",
        _yes_or_no,
    )
    return Wish(params=size, base=first, tokens=total, data=text, gpus=num_gpus, device=model, grow_depth=deeper)


def _ask(name: str, explanation: str, default: str, parse: Callable[[str], Answer]) -> Answer:
    """The parsed answer to one question, asked again until it is usable."""

    def usable(answer: str) -> Answer:
        try:
            return parse(answer.strip())
        except UserError as error:
            raise typer.BadParameter(str(error)) from None

    typer.echo(explanation)
    try:
        answer: Answer = typer.prompt(f"  {name}", default=default, value_proc=usable)
    except typer.Abort:
        raise UserError(f"--interactive: the answers end before {name}; answer it, or give --{name}") from None
    return answer


def _yes_or_no(answer: str) -> bool:
    if answer.lower() not in ("yes", "y", "no", "n"):
        raise UserError(f"{shown(answer)}: must be yes or no")
    return answer.lower() in ("yes", "y")


def _unless_auto(answer: str, parse: Callable[[str], Answer]) -> Answer | None:
    return None if answer == AUTO else parse(answer)
