"""The messages of wrong schedules: their order and length; and any value gives a plan or a message."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from growctl.ladder.plan import make_plan
from growctl.schedule.errors import ScheduleError
from tests.growctl.schedules import BASE, DELETE, changed, message_of, parse

TRAINING_KEYS = "sequence_length, batch_size, ladder_tokens, ladder_flops, precision, log_every"


def test_all_mistakes_are_reported_together_with_unknown_keys_first() -> None:
    data = changed({"seed": "x" * 999, "training.batch_sise": 1, "learning_rate.peak": DELETE})
    unknown = f"no such key; did you mean 'batch_size'? (allowed here: {TRAINING_KEYS})"
    assert message_of(parse, data).splitlines() == [
        "s.yaml: 3 problems",
        f"  training.batch_sise = 1: {unknown}",
        f"  seed = '{'x' * 56}...: must be a valid integer",
        "  learning_rate.peak: is missing",
    ]


def test_a_message_lists_only_the_first_of_very_many_mistakes() -> None:
    lines = message_of(parse, changed({f"x{number}": 1 for number in range(1000)})).splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("s.yaml: 1000 problems", "  ...", 22)


def test_a_ladder_has_at_most_32_stages() -> None:
    stages = [BASE["stages"][0] | {"name": f"s{number}", "ffn_tokens": 8 + number} for number in range(33)]
    assert "must have at most 32 items" in message_of(parse, changed({"stages": stages}))
    assert len(parse(changed({"stages": stages[:-1], "controls": []})).stages) == 32


ANY_VALUE = st.one_of(
    *(st.none(), st.booleans(), st.integers(-2, 2**70), st.floats(), st.text(max_size=5)),
    st.sampled_from(["15B", "1.5k", "auto", "softmax", "transformer", "${seed}"]),
    st.lists(st.integers(0, 3), max_size=3),
    st.dictionaries(st.sampled_from(["name", "kind", "x"]), st.integers(), max_size=2),
)


def paths_in(data: Any, path: str = "") -> list[str]:
    entries = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path] * bool(path) + [p for key, value in entries for p in paths_in(value, f"{path}.{key}".lstrip("."))]


@settings(max_examples=400)
@given(st.dictionaries(st.sampled_from([*paths_in(BASE), "model.ffn_size", "x"]), ANY_VALUE, min_size=1, max_size=1))
def test_any_value_anywhere_gives_a_schedule_that_plans_or_short_messages(changes: dict[str, Any]) -> None:
    try:
        schedule = parse(changed(changes))
    except ScheduleError as error:
        lines = str(error).splitlines()
        assert len(lines) == 1 or lines[0] == f"s.yaml: {len(lines) - 1} problems"
        assert max(map(len, lines)) < 400
    else:
        make_plan(schedule)
