"""What the runs of a set cost."""

from dataclasses import dataclass

from growctl.ladder.releases import plan_run
from growctl.ladder.stage_plans import total_flops
from growctl.run.requests import LadderRequest, RunRequest, left_to_train
from growctl.text.formatting import short_count


@dataclass(frozen=True)
class Cost:
    """What a ladder or a control costs."""

    sizes: str
    tokens: int
    flops: float
    left: float
    """FLOPs of the stages that are not finished."""

    @classmethod
    def of(cls, part: RunRequest, request: LadderRequest) -> "Cost":
        done = request.steps_done(part)
        plans = [plan for plan in plan_run(part.schedule, done) if request.trains(plan.index)]
        unfinished = left_to_train(part.schedule, request.directory(part))
        left = [plan for plan in unfinished if request.trains(plan.index)]
        sizes = [short_count(plan.num_parameters) for plan in plans if not plan.branch_of]
        ends = sizes if len(sizes) < 3 else [sizes[0], sizes[-1]]
        tokens = sum(plan.budget_tokens for plan in plans)
        return cls(" -> ".join(ends), tokens, total_flops(plans).total, total_flops(left).total)
