"""The check of what growctl's distributions hold. `make test-wheel` builds and runs them."""

import re
import tarfile
import tomllib
import zipfile
from pathlib import Path

from growctl.schedule.files import SHIPPED
from tests.workers import REPOSITORY
from tools.wheel import PACKAGES, SDIST_EXTRAS, packaged_files, problems, sdist_files, wheel_files


def test_every_module_schedule_and_type_marker_must_be_packaged() -> None:
    wanted = packaged_files()
    assert {str(path.relative_to(REPOSITORY)) for path in SHIPPED.rglob("*.yaml")} <= wanted
    assert {"growctl/cli/app.py", "stages/train/worker.py"} <= wanted
    assert {f"{package}/py.typed" for package in PACKAGES if package != "schedules"} <= wanted
    assert not [file for file in wanted if "__pycache__" in file or file.startswith("tests")]


def test_a_missing_and_a_stray_file_are_named(tmp_path: Path) -> None:
    wheel = tmp_path / "growctl.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("model/loss.py", "tests/test_loss.py", "growctl-0.1.0.dist-info/RECORD"):
            archive.writestr(name, "")
    assert problems("wheel", wheel_files(wheel), {"model/loss.py", "schedules/quickstart.yaml"}) == [
        "the wheel lacks schedules/quickstart.yaml",
        "the wheel should not hold tests/test_loss.py",
    ]


def test_what_setuptools_adds_to_an_sdist_is_allowed(tmp_path: Path) -> None:
    sdist = tmp_path / "growctl.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        for name in ("PKG-INFO", "setup.cfg", "growctl.egg-info/SOURCES.txt", "model/loss.py", "MANIFEST.in"):
            archive.addfile(tarfile.TarInfo(f"growctl-0.1.0/{name}"))
    assert sdist_files(sdist) == {"model/loss.py", "MANIFEST.in"}


def test_an_image_is_built_from_exactly_what_an_sdist_holds() -> None:
    lines = (REPOSITORY / ".dockerignore").read_text().splitlines()
    assert lines[1] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == {*PACKAGES, *SDIST_EXTRAS}


def test_the_page_on_installing_explains_every_extra() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    explained = re.findall(r"^\| `(\w+)` \|", (REPOSITORY / "docs/install.md").read_text(), re.MULTILINE)
    assert set(project["optional-dependencies"]) <= set(explained)
