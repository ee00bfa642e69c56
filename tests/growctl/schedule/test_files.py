"""Names of schedule files, and how overrides are written: what resolves, and what is rejected on one line."""

import contextlib
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growctl.ladder.load import load_schedule
from growctl.runs_dir import NAME_ALLOWED
from growctl.schedule.errors import ScheduleError
from growctl.schedule.files import shipped_schedules
from tests.growctl.schedule.test_growth_block import reloaded
from tests.growctl.schedules import BASE, DELETE, TEXT, changed, file_of, message_of, parse


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a schedule s.yaml: messages name files as a user in that folder sees them."""
    monkeypatch.chdir(tmp_path)
    file_of(tmp_path, TEXT)
    return tmp_path


def test_a_file_that_exists_wins_over_a_shipped_name_and_a_folder_does_not(folder: Path) -> None:
    (folder / "quickstart").mkdir()
    assert load_schedule("quickstart").seed != BASE["seed"]
    (folder / "quickstart").rmdir()
    file_of(folder, TEXT, "quickstart")
    file_of(folder, "not: this", "quickstart.yml")
    assert load_schedule("quickstart").seed == BASE["seed"]


@pytest.mark.parametrize("name", ["s.yaml", "s.yml", "s", "s.txt", "s.YAML", "a=b $c:d ${e} {}/s.yaml"])
def test_a_schedule_can_have_any_suffix_and_any_folder(tmp_path: Path, name: str) -> None:
    folder = (tmp_path / name).parent
    folder.mkdir(exist_ok=True)
    file_of(folder, TEXT, "other.yaml")
    content = "defaults: [other]\nname: run\n"
    assert load_schedule(file_of(tmp_path, content, name), ["seed=5"]) == parse(changed({"seed": 5, "name": "run"}))


def test_a_run_is_named_after_its_file_unless_the_schedule_sets_a_name(folder: Path) -> None:
    (folder / "link.yaml").symlink_to(folder / "s.yaml")
    for name, content, overrides, expected in (
        ("pile_1.4b.yaml", TEXT, [], "pile_1.4b"),
        ("own.yaml", f"name: mine\n{TEXT}", [], "mine"),
        ("s.yaml", TEXT, ["name=mine"], "mine"),
        ("link.yaml", TEXT, [], "link"),
    ):
        assert load_schedule(file_of(folder, content, name), overrides).name == expected
    not_allowed = f"name: is missing, and the file's name 'my run' is not allowed: {NAME_ALLOWED}"
    assert not_allowed in message_of(load_schedule, file_of(folder, TEXT, "my run.yaml"))


@pytest.mark.parametrize(
    ("overrides", "changes"),
    [
        (["stages.0.train_tokens=200k", "seed=1"], {"stages.0.train_tokens": 200_000, "seed": 1}),
        (["+checkpoint.keep_every=7"], {"checkpoint.keep_every": 7}),
        (["learning_rate.peak=2e-4", "seed=1", "seed=2"], {"learning_rate.peak": 2e-4, "seed": 2}),
        (["optimizer.betas=[0.8,0.9]"], {"optimizer.betas": [0.8, 0.9]}),
        (["~controls", "~launch.micro_batch_size"], {"controls": DELETE, "launch.micro_batch_size": DELETE}),
        (["data.source=s3://bucket/a file.txt"], {"data.source": "s3://bucket/a file.txt"}),
        (["data={source: /other}"], {"data.source": "/other"}),
        (["data.text_key=${model.family}"], {"data.text_key": "tokenformer"}),
        (["controls=[{kind: best-scratch}]"], {"controls": [{"kind": "best-scratch"}]}),
    ],
    ids=str,
)
def test_overrides_use_hydras_syntax(tmp_path: Path, overrides: list[str], changes: dict[str, Any]) -> None:
    assert load_schedule(file_of(tmp_path, TEXT), overrides) == parse(changed(changes))


@settings(max_examples=20)
@given(
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True),
    st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\\$"), min_size=1),
    st.floats(1e-12, 10.0),
)
@pytest.mark.slow
def test_names_texts_and_rates_survive_the_dump(name: str, separator: str, peak: float) -> None:
    original = parse(changed({"name": name, "data.document_separator": separator, "learning_rate.peak": peak}))
    assert reloaded(original) == original


NOT_AN_OVERRIDE = "is not an override; write key=value"
NO_SUCH = "Environment variable 'GROWCTL_NO_SUCH' not found"
NOT_A_BLOCK = "must be a block of a schedule's keys"
CLUSTERS = "there are hostfile, local, slurm"


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        *((wrong, NOT_AN_OVERRIDE) for wrong in ("foo", "a..b=1", "=5", "--name=x", "model/family=x", "hydra.job=1")),
        ("stages.9.name=x", "stages.9: list index out of range"),
        ("~stages.0", "a list's entries are set by number"),
        ("~nothing", "'nothing' does not exist"),
        ("+seed=1", "An item is already at 'seed'"),
        ("seed=1,2", "override 'seed=1,2': gives several values"),
        ("seed=[1", "override 'seed=[1': the value cannot be read"),
        ("seed=???", "seed: Missing mandatory value"),
        ("seed=${no.such}", "seed: Interpolation key 'no.such' not found"),
        ("seed=${oc.env:GROWCTL_NO_SUCH}", NO_SUCH),
        ("launch=slrum", f"no file 'launch/slrum'; {CLUSTERS}; did you mean 'slurm'?"),
        (f"launch={'x' * 999}", CLUSTERS),
        ("seed.x=3", 'seed = {"x": 3}: must be'),
        ("seed=", "seed = '': must be"),
    ],
    ids=lambda text: text[:40],
)
def test_a_wrong_override_gives_one_line(folder: Path, override: str, reason: str) -> None:
    message = message_of(load_schedule, "s.yaml", ["training.batch_size=16", override])
    assert message.startswith("s.yaml: ")
    assert reason in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", NOT_A_BLOCK),
        ("hello\n", NOT_A_BLOCK),
        ("seed: 1\nhydra: {verbose: true}\n", NOT_A_BLOCK),
        (bytes(range(256)), "is not UTF-8"),
        ("h\xe9\n".encode("latin-1"), "is not UTF-8"),
        ("seed: 0: 1\n", "line 1, column 8: "),
        ("model:\n\tfamily: x\n", "line 2, column 1: "),
        ("seed: 1\nmodel: {}\nseed: 2\n", "line 3, column 1: found duplicate key seed"),
        ("seed: 1\n---\nseed: 2\n", "found another document"),
        ("seed: !!python/object/apply:os.getcwd []\n", "os.getcwd"),
        ("seed: &a [*a]\n", "contains itself"),
        ("seed: !!set [a]\n", "is no YAML"),
        ("seed: ${seed}\n", "seed: Recursive interpolation"),
        ("data: {source: '${oc.env:GROWCTL_NO_SUCH}'}\n", NO_SUCH),
        ("seed: ${\n", "seed: "),
        ("seed: ???\n", "seed: Missing mandatory value"),
        ("seed: 1\n~: 2\n", "key type"),
        ("seed: '${oc.select:[1]}'\n", "seed: AttributeError"),
        ("defaults: s\n", "defaults must be a list"),
        ("defaults: [s, {launch: 5}]\n", "Supported: string or list"),
        ("defaults: [s, {overide launch: slurm}]\n", "'overide launch' must be a block, or override and a block"),
        ("defaults: [s, {override launch: slurm}]\n", "Could not override 'launch'"),
        ("defaults: [s, {launch: '${seed}'}]\n", "${seed}"),
        ("defaults: [{lunch: slurm}]\n", "did you mean 'launch'?"),
        ("defaults: [quikstart]\n", "did you mean 'quickstart'?"),
        ("defaults: [s, {launch: slrum}]\n", "no file 'launch/slrum'; there are hostfile, local, "),
        ("defaults: [pile_1.4b, {override data: wikitxt}]\n", "did you mean 'wikitext'?"),
        ("defaults: [pile_1.4b, {data: wikitext}]\n", "To override a value use 'override data: "),
        ("defaults: [s, {launch: '???'}]\n", "You must specify 'launch'"),
        ("defaults: [s, _self_, _self_]\n", "Duplicate _self_"),
        ("defaults: [s]\nstages: {1: {train_steps: 5}}\n", "Cannot merge"),
        ("defaults: [loop]\n", "contains itself"),
        ("defaults: [bad]\n", "bad.yaml: line 1, column 5: "),
        ("defaults: [list]\n", f"list.yaml: {NOT_A_BLOCK}"),
        ("defaults: [s, {launch: missing}]\n", "launch.slurm.partition: Missing mandatory value"),
        ("defaults: [s, {launch: nowhere}]\n", "launch.slurm.partition: Interpolation key 'no.such' not found"),
        ("cluster: slurm\n", "is not a schedule"),
    ],
    ids=lambda content: str(content[:60]),
)
def test_an_unusable_file_gives_one_line(folder: Path, content: str | bytes, reason: str) -> None:
    (folder / "launch").mkdir()
    for name, beside in {
        "bad": "a: b: c\n",
        "list": "- 1\n",
        "loop": "defaults: [s, loop2]\n",
        "loop2": "defaults: [loop]\n",
        "launch/missing": "slurm: {partition: '???'}\n",
        "launch/nowhere": "slurm: {partition: '${no.such}'}\n",
    }.items():
        file_of(folder, beside, f"{name}.yaml")
    message = message_of(load_schedule, Path(file_of(folder, content, "mine.yaml")).name)
    assert message.startswith("mine.yaml: ")
    assert reason in message
    assert "\n" not in message


def test_a_schedule_can_use_aliases_and_merged_keys(tmp_path: Path) -> None:
    text = TEXT.replace("seed: 3", "seed: &seed 3").replace("batch_size: 8", "<<: {batch_size: 8, log_every: *seed}")
    training = load_schedule(file_of(tmp_path, text)).training
    assert (training.batch_size, training.log_every) == (8, 3)


def test_a_schedule_can_come_through_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["/bin/sh", "-c", 'printf %s "$1" > "$2"', "sh", TEXT, str(tmp_path / "pipe")]):
        assert load_schedule(str(tmp_path / "pipe")).seed == 3


def test_a_missing_file_lists_the_shipped_names_and_suggests_the_nearest_file(folder: Path) -> None:
    comes_with = f"no such file; growctl comes with {', '.join(shipped_schedules())}"
    (folder / "folder").mkdir()
    for name in ("shakespeare.yaml", "shakespeare.txt"):
        (folder / name).touch()
    for reference in ("folder", ".", "a/b", "../schedules", "/no/such.yaml", "", "a\0b"):
        assert message_of(load_schedule, reference) == f"{reference!r}: {comes_with}"
    assert message_of(load_schedule, "x" * 5000) == f"'{'x' * 56}...: {comes_with}"
    for reference, near in (
        ("quikstart", "quickstart"),
        ("schedules/quickstar.yaml", "quickstart"),
        ("no/such/quickstart", "quickstart"),
        ("folder/../shakespear.yaml", "folder/../shakespeare.yaml"),
    ):
        assert message_of(load_schedule, reference) == f"{reference!r}: {comes_with}; did you mean {near!r}?"


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no /proc here")
def test_an_unreadable_file_gives_one_line() -> None:
    """Not even root can read this one, which exists and is not a folder."""
    assert message_of(load_schedule, "/proc/self/mem") == "/proc/self/mem: Input/output error"


KEYS = ("seed", "stages", "stages.0", "stages.2.name", "data", "data.source", "x", "controls")
VALUES = ("", "1,2", "[1]", "{a: 1}", "[", "${x}", "${", "${stages}", "null", "glob(*)", "'")
SIGNS = st.sampled_from(["", "", "+", "++", "~"])


@pytest.mark.slow
@settings(max_examples=40)
@given(
    st.lists(
        st.builds("{}{}={}".format, SIGNS, st.sampled_from(KEYS), st.sampled_from(VALUES) | st.text(max_size=6))
        | st.text(max_size=8),
        min_size=1,
        max_size=2,
    )
)
def test_any_override_gives_a_schedule_or_a_message(
    tmp_path_factory: pytest.TempPathFactory, overrides: list[str]
) -> None:
    path = file_of(tmp_path_factory.getbasetemp(), TEXT)
    with contextlib.suppress(ScheduleError):
        assert load_schedule(path, overrides).stages
