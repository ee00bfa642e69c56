"""The losses of a stage, as its trigger and its checkpoints have them."""

import math

from stages.checkpoint.lineage import TrainingRecord
from stages.train.evaluate import Evaluation, Measured
from stages.train.stage_losses import StageLosses


def evaluation(loss: float) -> Evaluation:
    return Evaluation(loss, math.exp(loss), loss, 10, None)


def test_a_trigger_follows_the_loss_at_the_stages_own_context_before_and_after_a_resume() -> None:
    losses = StageLosses()
    losses.add(10, Measured(evaluation(3.0), evaluation(4.0)))
    losses.add(20, Measured(evaluation(2.0), evaluation(3.5)))
    record = TrainingRecord(losses=losses.main, own_context_losses=losses.own_context)
    resumed = StageLosses.of(TrainingRecord.model_validate_json(record.model_dump_json()))
    assert losses.own == resumed.own == [(10, 4.0), (20, 3.5)]
    assert losses.main == resumed.main == [(10, 3.0), (20, 2.0)]


def test_losses_at_one_context_are_stored_once_and_one_that_is_not_a_number_is_read_again() -> None:
    losses = StageLosses()
    losses.add(10, Measured(evaluation(3.0), None))
    assert (losses.main, losses.own_context) == ([(10, 3.0)], [])
    assert losses.own == losses.main
    record = TrainingRecord(losses=[(10, math.nan)])
    [(step, loss)] = StageLosses.of(TrainingRecord.model_validate_json(record.model_dump_json())).own
    assert step == 10
    assert math.isnan(loss)
