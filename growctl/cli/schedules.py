"""The commands on schedule files: `init`, `validate` and `schema`.

Slow modules are imported on use.
"""

import json
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from growctl.cli.options import DEFAULT_RUNS_DIR, AsJson, RunsDir, unusable
from growctl.text.documents import SCHEDULE
from growctl.text.escaping import say

STANDARD_OUTPUT = "-"

if TYPE_CHECKING:
    from growctl.draft.grow_on import GrowOn
    from growctl.draft.recipe import Draft
    from growctl.ladder.costs import Plan


def init(
    file: Annotated[
        str | None,
        typer.Argument(
            help="File to write, or - for standard output (default: the size, for example 350m.yaml).", metavar="[FILE]"
        ),
    ] = None,
    params: Annotated[
        str | None, typer.Option(help="Parameters of the model that you want in the end, for example 350M.")
    ] = None,
    tokens: Annotated[
        str | None, typer.Option(help="Data tokens over all stages (default: 20 per parameter), for example 7B.")
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            help="Parameters of the first stage (default: the published 124M if that fits, else a fifth of --params)."
        ),
    ] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs of the machine that will train (default: all it has).")] = None,
    device: Annotated[
        str | None, typer.Option(help="The model of those GPUs, for memory and time in the plan, for example h100.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="The text: a shipped choice such as pile, a path, a URL, or OWNER/NAME on the Hugging Face hub "
            "(default: a shipped one that is large enough)."
        ),
    ] = None,
    grow_depth: Annotated[
        bool, typer.Option("--grow-depth", help="Let the growths add layers as well as parameter tokens.")
    ] = False,
    law: Annotated[
        str | None, typer.Option(help="A law that `growctl law fit` wrote: draft what it predicts to end lowest.")
    ] = None,
    flops: Annotated[float | None, typer.Option(help="With --law: training FLOPs from now on, such as 1e13.")] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="A checkpoint to grow and train further, for example an imported one. --params may be a factor, such "
            "as 2x; --tokens count from now on (default: 20 for each new parameter).",
            metavar="CKPT",
        ),
    ] = None,
    replay: Annotated[
        str | None, typer.Option(help="With --from: text like that which the checkpoint has read, to mix in.")
    ] = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
) -> None:
    """Write a commented schedule for a model of a given size: stages, tokens, batch, learning rate, controls.

    docs/schedules.md has the rules, each with its source. An existing file is never replaced.

    Example: growctl init 350m.yaml --params 350M --tokens 7B --gpus 8 --device h100

    Example: growctl init grown.yaml --law law.json --flops 1e13 --data /data/text
    """
    from pydantic import ValidationError

    from growctl.draft.fit import drafted
    from growctl.draft.grow_on import GrowWish
    from growctl.draft.recipe import LawWish, Wish
    from growctl.runs_dir import NAME_ALLOWED, RUN_NAME
    from growctl.schedule.errors import describe
    from growctl.schedule.files import ENDINGS
    from growctl.text.formatting import short_count

    both = {"params": params, "data": data, "gpus": gpus, "device": device}
    rules = {"base": base, "tokens": tokens, "grow_depth": grow_depth or None}
    others = {"law": law, "flops": flops, "start": start, "replay": replay}
    given = {name: value for name, value in (both | rules | others).items() if value is not None}
    kind = LawWish if law else Wish if start is None else GrowWish
    if wrong := [name for name in given if name not in kind.model_fields]:
        needs = {"flops": "with --law", "replay": "with --from"}.get(wrong[0], f"without --{'law' if law else 'from'}")
        raise unusable(f"--{'from' if wrong[0] == 'start' else wrong[0].replace('_', '-')}: only {needs}")
    try:
        wish = kind.model_validate(given)
    except ValidationError as error:
        raise unusable(f"--{describe(error, kind)[0]}") from None
    is_printed = file == STANDARD_OUTPUT
    size = wish.params if isinstance(wish.params, int) else None
    name = ("law" if law else "grown") if size is None else short_count(size).lower()
    path = Path(f"{name}.yaml" if is_printed or file is None else file)
    if path.suffix not in ENDINGS or not RUN_NAME.fullmatch(path.stem):
        raise unusable(f"{str(path)!r}: must be the name of a run, {NAME_ALLOWED}, that ends in .yaml")
    draft, text, planned = drafted(wish, path.stem, runs_dir)
    with nullcontext(sys.stdout) if is_printed else path.open("x", encoding="utf-8") as out:
        out.write(text)
    _say_drafted(draft, planned, None if is_printed else path)


def validate(
    files: Annotated[
        list[str],
        typer.Argument(
            help="Schedule files, or names of shipped schedules, and then overrides of all of them, in hydra's syntax.",
            metavar="SCHEDULE... [KEY=VALUE]...",
        ),
    ],
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """Check schedules, their controls and that a local text is there, as `run` does before it starts.

    Exit code 2 means that a schedule is invalid, or that its text or tokenizer is missing on this machine.

    Example: growctl validate quickstart stages.0.train_tokens=200k
    """
    from growctl.ladder.datasets import dataset_warnings
    from growctl.ladder.load import check_text, load_schedule
    from growctl.ladder.plan import CheckedSchedule, ValidateDocument
    from growctl.ladder.warnings import epoch_warnings, schedule_warnings
    from growctl.schedule.errors import ScheduleError
    from growctl.text.documents import print_document
    from growctl.trackers.adapters import missing_package

    files, overrides = _files_and_overrides(files)
    results: list[CheckedSchedule] = []
    for file in files:
        try:
            loaded = load_schedule(file, overrides, runs_dir=runs_dir)
            sizes = check_text(loaded, file, runs_dir)
            if missing := missing_package(loaded.trackers):
                raise ScheduleError(f"{file}: {missing}")
            warnings = *schedule_warnings(loaded), *epoch_warnings(loaded, sizes), *dataset_warnings(loaded, sizes)
            results.append(CheckedSchedule(file, valid=True, name=loaded.name, warnings=warnings))
        except ScheduleError as error:
            results.append(CheckedSchedule(file, valid=False, message=str(error)))
    if as_json:
        print_document(ValidateDocument(tuple(results)))
    else:
        for result in results:
            if result.valid:
                say(f"{result.file}: {result.name} is valid")
                for warning in result.warnings:
                    say(f"{result.file}: warning: {warning}", error=True)
            else:
                say(result.message or "", error=True)
    if not all(result.valid for result in results):
        raise typer.Exit(2)


def _files_and_overrides(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The schedules among `arguments`, and the overrides. Raises UserError if there is no schedule."""

    def is_override(text: str) -> bool:
        return ("=" in text or text.startswith("~")) and not os.path.exists(text)

    overrides = [text for text in arguments if is_override(text)]
    files = [text for text in arguments if text not in overrides]
    if not files:
        raise unusable(f"{overrides[0]!r} is an override; give a schedule: growctl validate SCHEDULE KEY=VALUE")
    return files, overrides


def schema(
    document: Annotated[
        list[str] | None,
        typer.Argument(
            help="schedule (the default), a file of a run (metrics, samples, scores), or a command, for what it prints "
            "with --json.",
            metavar="[DOCUMENT]",
        ),
    ] = None,
) -> None:
    """Print a JSON Schema: of schedule files, for editors, or of a document that growctl writes, for scripts.

    Example: growctl schema > schedule.schema.json

    Example: growctl schema status
    """
    from growctl.schedule.json_schema import schedule_schema
    from growctl.text.document_schema import document_schema

    name = "-".join(document or [SCHEDULE])  # `schema import official` as the command is written
    schema = schedule_schema() if name == SCHEDULE else document_schema(name)
    print(json.dumps(schema, indent=1, ensure_ascii=False))


def _say_drafted(draft: "Draft | GrowOn", plan: "Plan", path: Path | None) -> None:
    """Says what a draft holds and what to do next. On standard error if the draft itself is on standard output."""
    from growctl.ladder.costs import total_cost
    from growctl.text.formatting import scientific, short_count

    releases = [stage for stage in plan.stages if stage.branch_of]
    sizes = " -> ".join(short_count(stage.num_parameters) for stage in plan.trunk)
    line = f"{path or 'standard output'}: {sizes} parameters"
    for what, costs in (("stages", plan.trunk), ("releases", releases), ("controls", [c.total for c in plan.controls])):
        if costs:
            total = total_cost(costs)
            line += f"; {what}: {short_count(total.budget_tokens)} tokens, {scientific(total.flops)} FLOPs"
            line += f" ({scientific(total.reused_flops)} of them reused)" if total.reused_flops else ""
    say(line, error=path is None)
    for text in filter(None, [draft.remark, f"Text: {draft.source.source}"]):
        say(text, error=path is None)
    for warning in plan.warnings:
        say(f"warning: {warning}", error=True)
    if path is not None:
        file = shlex.quote(str(path))
        say(f"Next: growctl plan {file} --measure    shows memory, cost and, by timing real steps, time")
        say(f"      growctl run {file}               prepares the text and trains")
