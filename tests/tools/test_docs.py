"""The generated parts of the documentation match the code."""

from growctl.schedule.load import shipped_schedules
from tools.generate import PAGE, plans_table, with_plans


def test_the_table_of_plans_is_not_stale() -> None:
    assert PAGE.read_text() == with_plans(PAGE.read_text()), "run `make docs`"


def test_the_table_has_every_shipped_schedule() -> None:
    table = plans_table()
    assert all(f"[`{name}`]" in table for name in shipped_schedules())
