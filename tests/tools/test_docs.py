"""The generated parts of the documentation match the code."""

from growctl.schedule.files import shipped_schedules
from tools.generate import PAGE, with_plans


def test_the_table_of_plans_has_every_shipped_schedule_and_is_not_stale() -> None:
    page = with_plans(PAGE.read_text())
    assert all(f"[`{name}`]" in page for name in shipped_schedules())
    assert PAGE.read_text() == page, "run `make docs`"
