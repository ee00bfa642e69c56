"""Arguments and options that several commands share, what a shell completes for them, and how a result is printed."""

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from growctl.text.escaping import say

if TYPE_CHECKING:
    from growctl.text.section import Section
    from model.top_tokens import TopTokens

Made = TypeVar("Made")


def complete_run(context: typer.Context, incomplete: str) -> list[str]:
    """The names of runs that start with `incomplete`."""
    from growctl.runs_dir import RunPaths  # late: `doctor` must start even if another `stages` shadows ours

    runs_dir = Path(context.params["runs_dir"])
    folders = sorted(runs_dir.iterdir()) if runs_dir.is_dir() else []
    names = [folder.name for folder in folders if RunPaths(folder).schedule.is_file()]
    return [name for name in names if name.startswith(incomplete)]


def complete_schedule(incomplete: str) -> list[str]:
    """The names of the shipped schedules that start with `incomplete`; the shell completes files itself."""
    from growctl.schedule.files import shipped_schedules

    return [name for name in shipped_schedules() if name.startswith(incomplete)]


DEFAULT_RUNS_DIR = Path("runs")
RUNS_DIR_VARIABLE = "GROWCTL_RUNS_DIR"

CHECKPOINT_HELP = (
    "A checkpoint: its directory, a stage's or a run's directory, or by name RUN, RUN/STAGE, RUN/STAGE/release, "
    "RUN/STAGE/step_... or RUN/STAGE/release/step_...."
)

ScheduleName = Annotated[
    str,
    typer.Argument(
        help="A schedule file, or the name of a shipped schedule, such as quickstart or late_depth.",
        metavar="SCHEDULE",
        autocompletion=complete_schedule,
    ),
]
CheckpointName = Annotated[str, typer.Argument(help=CHECKPOINT_HELP, metavar="CKPT", autocompletion=complete_run)]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Overrides of the schedule, in hydra's syntax.", metavar="KEY=VALUE")
]
RunsDir = Annotated[
    Path, typer.Option("--runs-dir", envvar=RUNS_DIR_VARIABLE, help="Directory that holds the runs.", show_default=True)
]
RunName = Annotated[str | None, typer.Option("--name", help="Name of the run (default: the schedule's name).")]
Seeds = Annotated[
    str | None,
    typer.Option(
        "--seeds",
        help="Train a run for each of these seeds: 0,1,2 or range(0,3) gives NAME-seed-0, NAME-seed-1, NAME-seed-2.",
        metavar="SEED,...",
    ),
]
WithControls = Annotated[
    bool | None,
    typer.Option(
        "--controls/--no-controls",
        help="Train the ladder's controls after it, or only the ladder (default: as an earlier command said for "
        "this run; at first, with controls).",
    ),
]
Until = Annotated[
    str | None, typer.Option("--until", help="Train up to and including this stage, and no controls.", metavar="STAGE")
]
NoReuse = Annotated[
    bool, typer.Option("--no-reuse", help="Take over nothing from other runs; what this run has taken over stays.")
]
ReuseFrom = Annotated[
    list[Path] | None,
    typer.Option("--reuse-from", help="Another runs directory to reuse checkpoints from; repeatable.", metavar="DIR"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]

TokenizerFile = Annotated[
    Path | None,
    typer.Option("--tokenizer", help="A tokenizer.json to use instead of the checkpoint's own.", metavar="FILE"),
]
DeviceName = Annotated[
    str, typer.Option("--device", help="Device to compute on: cpu, cuda, cuda:1; auto: the first GPU if there is one.")
]
DtypeName = Annotated[
    Literal["float32", "bfloat16"], typer.Option("--dtype", help="Precision of weights and computations.")
]


TopKTokens = Annotated[
    str | None,
    typer.Option(
        "--top-k-tokens",
        help="Each data token reads only the K parameter tokens with the largest factors in every Pattention, or this "
        "share of them: 16 or 0.25. Other commands than generate take several, separated by commas.",
        metavar="K|SHARE",
    ),
]
TopKNorm = Annotated[
    Literal["all", "chosen"] | None,
    typer.Option("--top-k-norm", help="With --top-k-tokens: the scores that the norm is over (default: all)."),
]


def top_tokens(value: str | None, norm: Literal["all", "chosen"] | None) -> "tuple[TopTokens, ...]":
    """The numbers of parameter tokens to read that --top-k-tokens names, each once."""
    from model.top_tokens import TopTokens

    if value is None and norm is not None:
        raise unusable(f"--top-k-norm {norm} has no effect without --top-k-tokens")
    tops = []
    for name in dict.fromkeys(map(str.strip, value.split(","))) if value is not None else ():
        try:
            tops.append(TopTokens(amount=int(name) if name.isdecimal() else float(name), norm=norm or "all"))
        except ValueError:
            allowed = "a number of tokens such as 16, or a share such as 0.25, above 0 and up to 1.0"
            raise unusable(f"--top-k-tokens {name!r}: must be {allowed}") from None
    return tuple(tops)


def check_name(name: str | None) -> None:
    """Raises ScheduleError if no run can have that name."""
    from growctl.runs_dir import NAME_ALLOWED, RUN_NAME
    from growctl.schedule.errors import ScheduleError

    if name is not None and not RUN_NAME.fullmatch(name):
        raise ScheduleError(f"--name {name!r}: must be {NAME_ALLOWED}")


def runs_argument(purpose: str) -> Any:
    """The argument [RUN]... of a command, with `purpose` as its help."""
    return typer.Argument(help=purpose, metavar="RUN", autocompletion=complete_run)


def default_runs_dir() -> Path:
    """The runs directory if no option names one."""
    return Path(os.environ.get(RUNS_DIR_VARIABLE) or DEFAULT_RUNS_DIR)


def unusable(message: str) -> Exception:
    """A UserError. Imported late: `doctor` must start even if another `model` shadows ours."""
    from model.errors import UserError

    return UserError(message)


def from_options(make: Callable[..., Made], given: Mapping[str, Any]) -> Made:
    """What `make` makes of the options that have a value. Raises UserError, naming the option, for a value that it
    rejects."""
    from pydantic import ValidationError

    from model.strict import first_reason

    try:
        return make(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        [problem, *_] = error.errors()
        option = "".join(f"--{name} {problem['input']!r}: ".replace("_", "-") for name in problem["loc"][:1])
        reason = "must be a finite number" if problem["type"] == "finite_number" else first_reason(error)
        raise unusable(option + reason) from None


@dataclass(frozen=True)
class Result:
    """What a command found or made."""

    document: object
    """What it prints with --json."""
    shown: "Iterable[Section | str]" = ()
    """What it prints without: lines, and then sections."""
    failed: bool = False
    """Whether it ends with exit code 1."""


def prints(command: Callable[..., Result]) -> Callable[..., None]:
    """The command that prints the result of `command`, with the option --json."""

    @wraps(command)
    def printing(*arguments: Any, as_json: bool = False, **options: Any) -> None:
        emit(command(*arguments, **options), as_json)

    signature = inspect.signature(command)
    option = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson)
    parameters = [*signature.parameters.values(), option]
    printing.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    printing.__annotations__ = command.__annotations__ | {"as_json": AsJson}
    return printing


def emit(result: Result, as_json: bool) -> None:
    """Prints a result, as one JSON document or for people. Raises typer.Exit if it is a failure."""
    from growctl.text.console import Terminal
    from growctl.text.documents import print_document
    from growctl.text.terminal import print_sections

    if as_json:
        print_document(result.document)
    else:
        sections: list[Section] = []
        for part in result.shown:
            if isinstance(part, str):
                say(part)
            else:
                sections.append(part)
        print_sections(sections, Terminal(highlight=False))
    if result.failed:
        raise typer.Exit(1)
