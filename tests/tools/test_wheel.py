"""What growctl's distributions hold. `make test-wheel` builds and runs them."""

import re
import tomllib
from pathlib import Path

import pytest

from growctl.schedule.files import SHIPPED
from tests.workers import REPOSITORY
from tools.wheel import PACKAGES, SDIST_EXTRAS, check, packaged_files


def test_every_module_schedule_and_type_marker_must_be_packaged() -> None:
    wanted = packaged_files()
    assert {str(path.relative_to(REPOSITORY)) for path in SHIPPED.rglob("*.yaml")} <= wanted
    assert {"growctl/cli/app.py", "stages/train/worker.py"} <= wanted
    assert {f"{package}/py.typed" for package in PACKAGES if package != "schedules"} <= wanted
    assert not [file for file in wanted if "__pycache__" in file or file.startswith("tests")]


def test_a_missing_and_a_stray_file_are_named() -> None:
    with pytest.raises(SystemExit, match=r"^a\.whl lacks schedules/x\.yaml\na\.whl should not hold tests/x\.py$"):
        check(Path("a.whl"), {"model/x.py", "tests/x.py"}, {"model/x.py", "schedules/x.yaml"})


def test_an_image_is_built_from_exactly_what_an_sdist_holds() -> None:
    lines = (REPOSITORY / ".dockerignore").read_text().splitlines()
    assert lines[1] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == {*PACKAGES, *SDIST_EXTRAS}


def test_the_page_on_installing_explains_every_extra() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    explained = re.findall(r"^\| `(\w+)` \|", (REPOSITORY / "docs/install.md").read_text(), re.MULTILINE)
    assert set(project["optional-dependencies"]) <= set(explained)
