"""Runs on 1 or 2 ranks that are killed at random points and times end like undisturbed ones. `make soak` trains them.

About a hundred kills. GROWCTL_SEED draws those of the test that has it in its name again.
"""

import os
import random
import threading
import time
from collections.abc import Callable
from functools import cache
from signal import Signals
from subprocess import Popen
from typing import Any, NamedTuple

import pytest

from tests.reliability.faults.sitecustomize import send
from tests.reliability.harness import KilledRun, check_same_end, check_same_model
from tests.reliability.points import ACTIONS, CONVERSIONS, POINTS, RANK_VICTIMS, REUSES, RUN, WEATHER, Point

FIRST_SEED = int(os.environ.get("GROWCTL_SEED") or random.randrange(10**6))
NUM_RUNS = 1 if "GROWCTL_SEED" in os.environ else 12
KILLS_IN_A_RUN = (6, 10)
RANKS = ((1, None), (2, None), (1, 2), (2, 1))
"""Ranks at the beginning, and from the middle of the last stage on; None: no change."""
REUSING_SHARE = TIMED_SHARE = 0.25
"""Shares: of runs that take over every stage from another, and of kills at a random time instead of a point."""


class Kill(NamedTuple):
    """A planned kill; `name` is that of its mark file. Without a point, it comes at any time."""

    name: str
    point: Point | None
    victim: str

    def __str__(self) -> str:
        return f"{self.victim}, {self.point.name if self.point else 'at any time'}"


@pytest.fixture(scope="module")
def undisturbed(training: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[KilledRun, float]]:
    """Trains an undisturbed run, with at most a change of ranks, once; its second value: the seconds that it took."""

    @cache
    def trained(ranks: int, then: int | None) -> tuple[KilledRun, float]:
        started, run = time.monotonic(), KilledRun(tmp_path_factory.mktemp("undisturbed") / "run", ranks, then=then)
        run.to_the_end()
        return run, time.monotonic() - started

    return trained


def drawn(draw: random.Random, number: int, points: tuple[Point, ...], timed: float) -> Kill:
    if draw.random() < timed:
        return Kill(f"kill-{number}", None, draw.choice(("rank 0", *RANK_VICTIMS[1:])))
    point = draw.choice(points)
    return Kill(f"kill-{number}", point, draw.choice(point.possible))


def faults_of(kill: Kill, draw: random.Random, ranks: int) -> list[dict[str, Any]]:
    assert kill.point
    further: dict[str, Any] = {"nth": draw.randint(1, kill.point.most)}
    if kill.point.both:
        further["rank"] = draw.randrange(ranks)
    stage = draw.choice(kill.point.stages) if kill.point.stages != RUN else None
    return kill.point.faults(kill.name, kill.victim, stage, **further)


def strike(run: KilledRun, kill: Kill, process: Popen[str]) -> None:
    """Kills the victim, unless growctl has exited meanwhile."""
    if process.poll() is not None:
        return
    do, to = ACTIONS.get(kill.victim, ("SIGKILL", kill.victim))
    (run.marks / kill.name).touch()
    if not send(Signals[do], to, str(run.marks)):
        (run.marks / kill.name).unlink()


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + NUM_RUNS))
def test_a_run_that_is_killed_at_random_ends_like_an_undisturbed_one(undisturbed, tmp_path, seed):
    draw = random.Random(seed)
    ranks, then = draw.choice(RANKS)
    expected, usual_seconds = undisturbed(ranks, then)
    reuses = then is None and draw.random() < REUSING_SHARE
    points, timed_share = (REUSES, 0.0) if reuses else (POINTS, TIMED_SHARE)
    kills = [drawn(draw, number, points, timed_share) for number in range(draw.randint(*KILLS_IN_A_RUN))]
    if then:
        kills += [drawn(draw, len(kills) + i, CONVERSIONS, 0.0) for i in range(2)]
    timed = [kill for kill in kills if kill.point is None]
    faults = [fault for kill in kills if kill.point for fault in faults_of(kill, draw, ranks)]
    weather = draw.choice((None, None, *WEATHER))
    faults += [{"name": "weather"} | weather] if weather else []
    run = KilledRun(tmp_path / "killed", ranks, then=then)
    if reuses:
        run.give(expected)

    def meanwhile(process: Popen[str]) -> None:
        waiting = [kill for kill in timed if kill.name not in run.struck()]
        for kill in waiting[:1]:
            threading.Timer(draw.uniform(0.0, usual_seconds / 3), strike, (run, kill, process)).start()

    run.to_the_end(faults, meanwhile)
    (check_same_model if reuses else check_same_end)(run, expected)
    struck = [str(kill) for kill in kills if kill.name in run.struck()]
    print(f"{len(struck)} kills of {ranks} ranks, then {then}, in weather {weather}: {'; '.join(struck)}")
