"""The commands on schedule files: `validate` and `schema`.

Slow modules are imported on use.
"""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from growctl.cli.options import DEFAULT_RUNS_DIR, AsJson, RunsDir
from growctl.text.escaping import say

if TYPE_CHECKING:
    from growctl.schema.blocks import Schedule


def validate(
    files: Annotated[
        list[str],
        typer.Argument(help="Schedule files, or names of shipped schedules.", metavar="FILE"),
    ],
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """Check schedules and their controls, as `run` does before it starts. Exit code 2 means that one is invalid.

    Example: growctl validate quickstart my_ladder.yaml
    """
    from growctl.schedule.load import ScheduleError, load_schedule

    results: list[dict[str, Any]] = []
    for file in files:
        try:
            results.append({"file": file, "valid": True} | _brief(load_schedule(file, runs_dir=runs_dir)))
        except ScheduleError as error:
            results.append({"file": file, "valid": False, "message": str(error)})
    if as_json:
        print(json.dumps({"schedules": results}, indent=1))
    else:
        for result in results:
            if result["valid"]:
                say(f"{result['file']}: {_line(result)}")
                for warning in result["warnings"]:
                    say(f"{result['file']}: warning: {warning}", error=True)
            else:
                say(result["message"], error=True)
    if not all(result["valid"] for result in results):
        raise typer.Exit(2)


def schema() -> None:
    """Print the JSON Schema of schedule files, which editors use to complete and check them.

    Example: growctl schema > schedule.schema.json
    """
    from growctl.schedule.json_schema import schema_text

    print(schema_text(), end="")


def _brief(schedule: "Schedule") -> dict[str, Any]:
    """A schedule's name, the size and budget of its stages, and warnings about its controls."""
    from growctl.controls.caveats import schedule_caveats
    from growctl.ladder.sizes import num_steps, stage_model
    from model.config import num_parameters

    tokens_per_step = schedule.training.batch_size * schedule.training.sequence_length
    stages = [
        {
            "name": stage.name,
            "num_parameters": num_parameters(stage_model(schedule, index)),
            "train_tokens": num_steps(stage, tokens_per_step) * tokens_per_step,
        }
        for index, stage in enumerate(schedule.stages)
    ]
    return {"name": schedule.name, "stages": stages, "warnings": schedule_caveats(schedule)}


def _line(result: dict[str, Any]) -> str:
    """A valid schedule, on one line."""
    from growctl.text.formatting import short_count

    stages = [
        f"{stage['name']} ({short_count(stage['num_parameters'])}, {short_count(stage['train_tokens'])} tokens)"
        for stage in result["stages"]
    ]
    count = "1 stage" if len(stages) == 1 else f"{len(stages)} stages"
    return f"{result['name']}, {count}: {' -> '.join(stages)}"
