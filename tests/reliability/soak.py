"""Kills runs at random points and times and prints a table of the results.

    python -m tests.reliability.soak --kills 100 --json build/soak.json

Each run on 1 or 2 ranks is killed a few times, restarted until it is done, and compared with an undisturbed one.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from signal import Signals
from subprocess import Popen
from typing import Any, NamedTuple

from tests.reliability.faults.sitecustomize import send
from tests.reliability.harness import KilledRun, check_same_end, check_same_model
from tests.reliability.points import ACTIONS, BY_NAME, CONVERSIONS, POINTS, RANK_VICTIMS, REUSES, RUN, WEATHER, Point

AT_ANY_TIME = "at any time"
KILLS_IN_A_RUN = (6, 10)
RANKS = ((1, None), (2, None), (1, 2), (2, 1))
"""Ranks at the beginning, and from the middle of the last stage on; None: no change."""
REUSING_SHARE = TIMED_SHARE = 0.25
"""Shares: of runs that take over every stage from another, and of kills at a random time instead of a point."""


class Kill(NamedTuple):
    """A planned kill; `name` is that of its mark file."""

    name: str
    point: str
    victim: str


class Tried(NamedTuple):
    """A kill that took place; `survived`: the run ended like the undisturbed one."""

    ranks: int
    point: str
    victim: str
    survived: bool
    started_again: bool


class Soak:
    """A series of runs, each with some kills."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random, self.folder = random.Random(seed), folder
        self.undisturbed: dict[tuple[int, int | None], tuple[KilledRun, float]] = {}
        self.tried: list[Tried] = []
        self.failures: list[str] = []
        self.not_reached = self.runs = 0

    def run(self) -> None:
        """Runs one run with its kills to its end, and records the result of each kill."""
        self.runs += 1
        ranks, then = self.random.choice(RANKS)
        expected, usual_seconds = self._expected(ranks, then)
        reuses = then is None and self.random.random() < REUSING_SHARE
        points, timed_share = (REUSES, 0.0) if reuses else (POINTS, TIMED_SHARE)
        kills = [self._drawn(number, points, timed_share) for number in range(self.random.randint(*KILLS_IN_A_RUN))]
        if then:
            kills += [self._drawn(len(kills) + i, CONVERSIONS, 0.0) for i in range(2)]
        timed = [kill for kill in kills if kill.point == AT_ANY_TIME]
        faults = [fault for kill in kills if kill not in timed for fault in self._faults(kill, ranks)]
        weather = self.random.choice((None, None, *WEATHER))
        faults += [{"name": "weather"} | weather] if weather else []
        run = KilledRun(self.folder / f"run-{self.runs}", ranks, then=then)
        if reuses:
            run.give(expected)

        def meanwhile(process: Popen[str]) -> None:
            waiting = [kill for kill in timed if kill.name not in run.struck()]
            for kill in waiting[:1]:
                threading.Timer(self.random.uniform(0.0, usual_seconds / 3), _strike, (run, kill, process)).start()

        why = None
        try:
            run.to_the_end(faults, meanwhile)
            (check_same_model if reuses else check_same_end)(run, expected)
        except Exception:
            why = traceback.format_exc()
        struck = {mark: life for life in run.lives for mark in life.struck}
        for kill in kills:
            life = struck.get(kill.name)
            if life is None:
                self.not_reached += 1
                continue
            again = life.exit_code != 0 and [mark for mark in life.struck if "+" not in mark][-1] == kill.name
            self.tried.append(Tried(ranks, kill.point, kill.victim, why is None, again))
        if why:
            plan = f"run {self.runs}, {ranks} ranks, then {then}: {kills}, weather {weather}"
            self.failures.append(f"{plan}: {run.struck()}\n{why}\nkept in {run.folder}")
            print(self.failures[-1], flush=True)
        else:
            shutil.rmtree(run.folder)

    def _expected(self, ranks: int, then: int | None) -> tuple[KilledRun, float]:
        """An undisturbed run, with at most a change of ranks, and the seconds that it took."""
        if (ranks, then) not in self.undisturbed:
            started = time.monotonic()
            run = KilledRun(self.folder / f"undisturbed-{ranks}-{then}", ranks, then=then)
            run.to_the_end()
            self.undisturbed[ranks, then] = run, time.monotonic() - started
        return self.undisturbed[ranks, then]

    def _drawn(self, number: int, points: tuple[Point, ...], timed: float) -> Kill:
        if self.random.random() < timed:
            return Kill(f"kill-{number}", AT_ANY_TIME, self.random.choice(("rank 0", *RANK_VICTIMS[1:])))
        point = self.random.choice(points)
        return Kill(f"kill-{number}", point.name, self.random.choice(point.possible))

    def _faults(self, kill: Kill, ranks: int) -> list[dict[str, Any]]:
        point = BY_NAME[kill.point]
        further: dict[str, Any] = {"nth": self.random.randint(1, point.most)}
        if point.both:
            further["rank"] = self.random.randrange(ranks)
        stage = self.random.choice(point.stages) if point.stages != RUN else None
        return point.faults(kill.name, kill.victim, stage, **further)

    def table(self) -> str:
        """The results by point and victim."""
        rows: list[tuple[str, ...]] = [("point", "victim", "tried", "survived", "run again", "went on")]
        for point, victim in sorted({(kill.point, kill.victim) for kill in self.tried}):
            these = [kill for kill in self.tried if (kill.point, kill.victim) == (point, victim)]
            survived, again = sum(kill.survived for kill in these), sum(kill.started_again for kill in these)
            rows.append((point, victim, *map(str, (len(these), survived, again, len(these) - again))))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)) for row in rows)


def _strike(run: KilledRun, kill: Kill, process: Popen[str]) -> None:
    """Kills the victim, unless growctl has exited meanwhile."""
    if process.poll() is not None:
        return
    do, to = ACTIONS.get(kill.victim, ("SIGKILL", kill.victim))
    (run.marks / kill.name).touch()
    if not send(Signals[do], to, str(run.marks)):
        (run.marks / kill.name).unlink()


def main() -> int:
    """Returns the exit code: 0 if every kill was survived."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100, help="stop after so many")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no further run after so long")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--json", type=Path, default=Path("build/soak.json"), help="where the outcome is written")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    started = time.monotonic()
    soak = Soak(arguments.seed, Path(tempfile.mkdtemp(prefix="growctl-soak-")))
    while len(soak.tried) < arguments.kills and time.monotonic() - started < 60 * arguments.minutes:
        soak.run()
        survived = sum(kill.survived for kill in soak.tried)
        seconds = round(time.monotonic() - started)
        print(f"{soak.runs} runs, {len(soak.tried)} kills, {survived} survived, {seconds} s", flush=True)
        told = {"seed": arguments.seed, "runs": soak.runs, "seconds": seconds, "not_reached": soak.not_reached}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        told |= {"kills": [kill._asdict() for kill in soak.tried], "failures": soak.failures}
        arguments.json.write_text(json.dumps(told, indent=1))
    print(f"\n{soak.table()}\n\n{soak.not_reached} kills were planned at points that the run did not reach again")
    if not soak.failures:
        shutil.rmtree(soak.folder)
    return 1 if soak.failures else 0


if __name__ == "__main__":
    sys.exit(main())
