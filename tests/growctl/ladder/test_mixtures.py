"""What a schedule reads of each source: in the plan, and before a run whose sources would not last."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from growctl.ladder.datasets import exhausted, mixture_parts
from growctl.ladder.load import load_schedule, parse_schedule
from growctl.ladder.plan import make_plan
from growctl.ladder.stage_plans import plan_stages
from growctl.run.dataset import RunDataset
from growctl.run.screen import Screen
from growctl.runs.directory import RunError
from growctl.schedule.blocks import Schedule
from growctl.text.console import Terminal
from tests.growctl.mixed import mixed_schedule, write_schedule, write_texts
from tests.growctl.runs import run_here

SIZES = {"books": 1600, "code": 160}
"""100 samples of books and 10 of code."""


def mixed(limit: float | None = None, **data: Any) -> Schedule:
    written = mixed_schedule(Path("/texts"))
    written["data"] |= data
    written["data"]["mixture"][1]["epochs_at_most"] = limit
    return parse_schedule(written, label="s", default_name="s")


def read(schedule: Schedule, sizes: dict[str, int | None]) -> dict[tuple[str, str], tuple[int, float | None]]:
    return {(part.stage, part.source): (part.budget_tokens, part.epochs) for part in mixture_parts(schedule, sizes)}


def test_tokens_and_epochs_by_source_and_stage_add_up() -> None:
    """Stages of 24, 24 and 32 samples: 18 + 24 + 8 of books, 6 + 0 + 24 of code."""
    parts = read(mixed(), dict(SIZES))
    assert [tokens for tokens, _ in parts.values()] == [18 * 16, 6 * 16, 24 * 16, 0, 8 * 16, 24 * 16]
    assert [parts["c", name][1] for name in SIZES] == pytest.approx([50 / 100, 30 / 10])
    assert read(mixed(), {"books": 1600, "code": None})["c", "code"] == (24 * 16, None)


def test_a_source_that_does_not_last_is_named_with_what_to_change() -> None:
    assert exhausted(mixed(3), SIZES) is None
    message = exhausted(mixed(2.5), SIZES)
    assert message
    assert "'code' has 160 tokens and may be read 2.5 times (epochs_at_most); raise" in message
    assert "raise its epochs_at_most, lower its weight, or train on fewer tokens" in message
    assert exhausted(mixed(2.5, when_exhausted="others"), SIZES) is None
    assert exhausted(mixed(0.05), SIZES)
    early = exhausted(mixed(0.5), SIZES) or ""
    assert "of 1,280 training tokens" in early, "by the whole ladder, not only by the stage where the source ends"
    assert exhausted(mixed(2.5), {"books": 1600, "code": None}) is None
    others = read(mixed(2.5, when_exhausted="others"), dict(SIZES))
    assert others["c", "code"] == (19 * 16, 2.5)
    assert others["c", "books"][0] == 13 * 16


@pytest.mark.parametrize("contexts", [(16, 16, 16), (8, 16, 32)])
def test_how_long_sources_last_is_said_in_training_tokens_whatever_the_contexts(contexts: tuple[int, ...]) -> None:
    written = mixed_schedule(Path("/texts"))
    written["data"]["mixture"][1]["epochs_at_most"] = 1
    written["stages"] = [
        stage | {"sequence_length": context} for stage, context in zip(written["stages"], contexts, strict=True)
    ]
    schedule = parse_schedule(written, label="s", default_name="s")
    num_tokens = sum(plan.budget_tokens for plan in plan_stages(schedule))
    found = re.search(r"the sources last for ([\d,]+) of ([\d,]+) training tokens: ", exhausted(schedule, SIZES) or "")
    assert found
    lasting, needed = (int(number.replace(",", "")) for number in found.groups())
    assert needed == num_tokens == 80 * 16
    parts = list(mixture_parts(schedule, SIZES))
    before_c = sum(part.budget_tokens for part in parts if part.stage != "c")
    of_code = sum(part.budget_tokens for part in parts if part.stage != "c" and part.source == "code")
    assert before_c < lasting < before_c + 4 / 3 * (SIZES["code"] - of_code) + 2 * max(contexts)


def test_plan_warns_of_sources_that_do_not_last_or_are_read_often(tmp_path: Path) -> None:
    written = mixed_schedule(tmp_path)
    for source, tokens in zip(written["data"]["mixture"], SIZES.values(), strict=True):
        source |= {"approximate_tokens": tokens, "epochs_at_most": 2}
    plan = make_plan(parse_schedule(written, label="s", default_name="s"))
    assert any(line.startswith("s cannot be trained: data.mixture: the sources last for") for line in plan.warnings)
    for source in written["data"]["mixture"]:
        source |= {"approximate_tokens": 96, "epochs_at_most": None}
    plan = make_plan(parse_schedule(written, label="s", default_name="s"))
    assert any("read more than 4 times: s 8.3 times" in line for line in plan.warnings)
    assert [cost.epochs for cost in plan.trunk] == pytest.approx([3, 7, 50 / 6])


def test_plan_validate_and_run_agree_on_a_prepared_mixture(tmp_path: Path) -> None:
    write_texts(tmp_path)
    controls = [{"kind": "tokenformer-scratch", "budgets": [1.0, 3.0]}]
    path, runs = write_schedule(tmp_path, controls=controls), tmp_path / "runs"
    run_here("prepare", path, "--runs-dir", runs)
    out, _ = run_here("plan", path, "--runs-dir", runs)
    assert "Tokens and epochs by source" in " ".join(out.split())
    document = json.loads(run_here("plan", path, "--runs-dir", runs, "--json")[0])
    assert [(part["source"], part["budget_tokens"]) for part in document["stages"][1]["mixture"]] == [
        ("books", 384),
        ("code", 0),
    ]
    assert document["controls"][0]["stages"][0]["mixture"][1]["budget_tokens"] > 0

    short = "data.mixture.1.epochs_at_most=0.05"
    _, err = run_here("validate", path, short, "--runs-dir", runs, expect=2)
    assert "'code' has " in err
    schedule = load_schedule(str(path), [short], runs_dir=runs)
    with pytest.raises(RunError, match=r"may be read 0\.05 times"):
        RunDataset(schedule, runs, Screen(Terminal())).prepared()
    schedule = load_schedule(str(path), ["data.mixture.1.epochs_at_most=0.13"], runs_dir=runs)
    RunDataset(schedule, runs, Screen(Terminal())).prepared()
    with pytest.raises(RunError, match=r"^mixed-control-tokenformer-scratch-3x: .*or leave the controls out"):
        RunDataset(schedule, runs, Screen(Terminal()), with_controls=True).prepared()
    assert not (runs / "mixed").exists()
