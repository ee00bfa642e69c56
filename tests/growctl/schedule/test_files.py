"""Names of schedule files, and how overrides are written: what resolves, and what is rejected."""

import contextlib
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from growctl.ladder.load import ScheduleError, load_schedule, shipped_schedules
from growctl.schedule.blocks import Schedule
from growctl.schedule.errors import LOOK_UPS, NAME_ALLOWED
from tests.growctl.schedules import BASE, DELETE, TEXT, changed, file_of, message_of, parse

ROOT = Path(__file__).resolve().parent.parent.parent.parent


def test_a_file_that_exists_wins_over_a_shipped_name_and_a_folder_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").mkdir()
    assert load_schedule("quickstart").data.source != BASE["data"]["source"]
    (tmp_path / "quickstart").rmdir()
    file_of(tmp_path, TEXT, "quickstart")
    file_of(tmp_path, "not: this", "quickstart.yml")
    assert load_schedule("quickstart").data.source == BASE["data"]["source"]


@pytest.mark.parametrize("name", ["s.yaml", "s.yml", "s", "s.txt", "s.YAML", "a=b $c:d {}/s.yaml"])
def test_a_schedule_can_have_any_suffix_and_any_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    for key in ("data", "name", "seed"):  # hydra would take these folders for config groups
        (tmp_path / name).parent.joinpath(key).mkdir()
    loaded = load_schedule(file_of(tmp_path, TEXT, name), ["name=run", "seed=5"])
    assert loaded == parse(changed({"seed": 5, "name": "run"}))


def test_a_run_is_named_after_its_file_unless_the_schedule_sets_a_name(tmp_path: Path) -> None:
    assert load_schedule(file_of(tmp_path, TEXT, "pile_1.4b.yaml")).name == "pile_1.4b"
    assert load_schedule(file_of(tmp_path, f"name: mine\n{TEXT}")).name == "mine"
    assert load_schedule(file_of(tmp_path, TEXT), ["name=mine"]).name == "mine"
    (tmp_path / "link.yaml").symlink_to(tmp_path / "s.yaml")
    assert load_schedule(str(tmp_path / "link.yaml")).name == "link"
    path = file_of(tmp_path, TEXT, "my run.yaml")
    assert (
        message_of(load_schedule, path)
        == f"{path}: name: is missing, and the file's name 'my run' is not allowed: {NAME_ALLOWED}"
    )


@pytest.mark.parametrize(
    ("overrides", "changes"),
    [
        (["stages.0.train_tokens=200k", "seed=1"], {"stages.0.train_tokens": 200_000, "seed": 1}),
        (["++seed=1"], {"seed": 1}),
        (["+checkpoint.keep_every=7"], {"checkpoint.keep_every": 7}),
        (["checkpoint.every=7", "checkpoint.keep=1"], {"checkpoint.every": 7, "checkpoint.keep": 1}),
        (["learning_rate.peak=2e-4"], {"learning_rate.peak": 2e-4}),
        (["optimizer.betas=[0.8,0.9]"], {"optimizer.betas": [0.8, 0.9]}),
        (["optimizer.betas.1=0.99"], {"optimizer.betas": [0.9, 0.99]}),
        (["controls=[]"], {"controls": []}),
        (["~controls", "~launch.micro_batch_size"], {"controls": DELETE, "launch.micro_batch_size": DELETE}),
        (
            ["~stages.1.train_steps", "stages.1.train_tokens=4k"],
            {"stages.1.train_steps": DELETE, "stages.1.train_tokens": 4000},
        ),
        (["data.source=s3://bucket/a file.txt"], {"data.source": "s3://bucket/a file.txt"}),
        (["data={source: /other}"], {"data.source": "/other"}),
        (["data.text_key=${model.family}"], {"data.text_key": "tokenformer"}),
        (["seed=1", "seed=2"], {"seed": 2}),
        (
            ["stages=[{name: one, attention_tokens: 4, ffn_tokens: 8, train_steps: 5}]"],
            {"stages": [{"name": "one", "attention_tokens": 4, "ffn_tokens": 8, "train_steps": 5}]},
        ),
    ],
)
def test_overrides_use_hydras_syntax(tmp_path: Path, overrides: list[str], changes: dict[str, Any]) -> None:
    assert load_schedule(file_of(tmp_path, TEXT), overrides) == parse(changed(changes))


@settings(max_examples=25)
@given(
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True),
    st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\\$"), min_size=1),
    st.floats(1e-12, 10.0),
)
@pytest.mark.slow
def test_names_texts_and_rates_survive_the_dump(name: str, separator: str, peak: float) -> None:
    original = parse(changed({"name": name, "data.document_separator": separator, "learning_rate.peak": peak}))
    text = OmegaConf.to_yaml(OmegaConf.create(original.model_dump(mode="json")))
    assert parse(OmegaConf.to_container(OmegaConf.create(text))) == original


def test_importing_schedules_and_plans_imports_nothing_heavy() -> None:
    heavy = "{'torch', 'deepspeed', 'hydra', 'omegaconf', 'datatrove', 'matplotlib', 'tokenizers'}"
    code = f"import sys, growctl.ladder.load, growctl.ladder.stage_plans; sys.exit(str({heavy} & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert ended.stderr.strip() == "set()"


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("foo", "'foo' is not an override; write key=value, such as training.batch_size=64"),
        ("a..b=1", "'a..b=1' is not an override; write key=value, such as training.batch_size=64"),
        ("=5", "'=5' is not an override; write key=value, such as training.batch_size=64"),
        ("--name=x", "'--name=x' is not an override; write key=value, such as training.batch_size=64"),
        ("model/family=x", "'model/family=x' is not an override; write key=value, such as training.batch_size=64"),
        ("stages.9.name=x", "override 'stages.9.name=x': the list has no such entry; entries count from 0"),
        (
            "stages.x.name=x",
            "override 'stages.x.name=x': does not fit; a list stays a list; set its entries by number "
            "(stages.0.name=a); none can be deleted",
        ),
        (
            "~stages.0",
            "override '~stages.0': does not fit; a list stays a list; set its entries by number "
            "(stages.0.name=a); none can be deleted",
        ),
        ("~nothing", "override '~nothing': Could not delete from config. 'nothing' does not exist."),
        ("+seed=1", "override '+seed=1': Could not append to config. An item is already at 'seed'."),
        (
            "seed=1,2",
            "override 'seed=1,2': gives several values; write a list as key=[1,2]; growctl sweep trains a run for "
            "each value",
        ),
        (
            "seed=range(1,3)",
            "override 'seed=range(1,3)': gives several values; write a list as key=[1,2]; growctl sweep trains a run "
            "for each value",
        ),
        (
            "seed=[1",
            "override 'seed=[1': the value cannot be read; put text with special characters in quotes, inside "
            "the shell's quotes: 'key=\"...\"'",
        ),
        ("seed=???", "override 'seed=???': seed: must be given"),
        ("seed=${no.such}", "override 'seed=${no.such}': seed: Interpolation key 'no.such' not found"),
        (
            "seed=${oc.env:GROWCTL_NO_SUCH}",
            "override 'seed=${oc.env:GROWCTL_NO_SUCH}': seed: Environment variable 'GROWCTL_NO_SUCH' not found",
        ),
        (
            f"launch={'x' * 999}",
            f"override 'launch={'x' * 49}...: no choice '{'x' * 56}... for launch; choices are hostfile, local, slurm; "
            "to set one of its values, write launch.KEY=VALUE",
        ),
        ("hydra.verbose=true", "override 'hydra.verbose=true': a schedule cannot contain hydra's own settings"),
        ("stages=3", "{label}: override 'stages=3': stages = 3: must be a list"),
        ("seed.x=3", '{label}: seed = {{"x": 3}}: must be a whole number'),
        ("seed=", "{label}: override 'seed=': seed = '': must be a whole number"),
        (
            "launch.device=2",
            "{label}: override 'launch.device=2': launch.device = 2: no such key; did you mean 'devices'? (allowed "
            "here: cluster, nodes, devices, zero_stage, offload, activation_checkpointing, kernels, micro_batch_size, "
            "environment, grace, hang_timeout, max_restarts, hostfile, slurm, hardware)",
        ),
        (
            "stages.1.train_tokens=4k",
            "{label}: stages.1: has both train_tokens and train_steps; drop one (as an override: "
            "~stages.1.train_tokens)",
        ),
    ],
)
def test_a_wrong_override_gives_one_line(tmp_path: Path, override: str, problem: str) -> None:
    path = file_of(tmp_path, TEXT)
    expected = problem.format(label=path) if problem.startswith("{label}") else problem
    assert message_of(load_schedule, path, [override]) == expected


def test_an_error_names_the_wrong_override_among_several(tmp_path: Path) -> None:
    overrides = ["seed=1", "stages.9.name=x", "training.batch_size=16"]
    problem = "override 'stages.9.name=x': the list has no such entry; entries count from 0"
    assert message_of(load_schedule, file_of(tmp_path, TEXT), overrides) == problem


NO_SCHEDULE = f"is not a schedule; a schedule has the keys {', '.join(Schedule.model_fields)}"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", NO_SCHEDULE),
        ("# nothing\n", NO_SCHEDULE),
        ("- 1\n- 2\n", NO_SCHEDULE),
        ("hello\n", NO_SCHEDULE),
        ("5\n", "cannot be read: Invalid loaded object type: int"),
        (bytes(range(256)), "is not UTF-8 text; a schedule is a YAML file"),
        ("h\xe9\n".encode("latin-1"), "is not UTF-8 text; a schedule is a YAML file"),
        ("seed: 0: 1\n", "line 1, column 8: mapping values are not allowed here"),
        ("model:\n\tfamily: x\n", r"line 2, column 1: found character '\t' that cannot start any token"),
        ("seed: 1\nmodel: {}\nseed: 2\n", "line 3, column 1: found duplicate key seed"),
        ("model:\n  family: a\n  family: b\n", "line 3, column 3: found duplicate key family"),
        ("seed: 1\n---\nseed: 2\n", "line 2, column 1: but found another document"),
        (
            "seed: !!python/object/apply:os.getcwd []\n",
            "line 1, column 7: the tag 'tag:yaml.org,2002:python/object/apply:os.getcwd' is not allowed: a "
            "schedule is plain data; put text that starts with ! in quotes",
        ),
        ("seed: &a [*a]\n", "cannot be read: is nested too deeply, or contains itself"),
        (
            "seed: !!bool maybe\n",
            "cannot be read: a tag, such as !!bool, does not fit its value",
        ),
        ("seed: !!timestamp now\n", "cannot be read: a tag, such as !!bool, does not fit its value"),
        ("seed: !!set [a]\n", "cannot be read: a tag, such as !!bool, does not fit its value"),
        ("seed: ${no.such}\n", "seed: Interpolation key 'no.such' not found"),
        ("seed: ${seed}\n", "seed: Recursive interpolation detected"),
        (
            "data: {source: '${oc.env:GROWCTL_NO_SUCH}'}\n",
            "data.source: Environment variable 'GROWCTL_NO_SUCH' not found",
        ),
        ("seed: ${\n", "cannot be read: seed: no viable alternative at input '${'"),
        ("seed: ???\n", "seed: must be given"),
        ("seed: 1\nhydra: {verbose: true}\n", "hydra: a schedule cannot contain hydra's own settings"),
        ("seed: 1\n~: 2\n", "cannot be read: keys must be text"),
        (f"seed: 0x{'f' * 4000}\n", "cannot be read: line 1: a number of 4002 characters"),
        ("seed: '${oc.env:A,B,C}'\n", f"seed: cannot be resolved; a schedule may use {LOOK_UPS}"),
        ("seed: '${oc.select:[1]}'\n", f"seed: cannot be resolved; a schedule may use {LOOK_UPS}"),
        ("seed: '${....seed}'\n", "seed: Error resolving key '....seed'"),
    ],
)
def test_an_unusable_file_gives_one_line(tmp_path: Path, content: str | bytes, problem: str) -> None:
    path = file_of(tmp_path, content)
    assert message_of(load_schedule, path) == f"{path}: {problem}"


def repeated(pattern: str) -> str:
    """YAML with ten values, each of which contains the one before ten times."""
    lines = [f"{new}: &{new} {pattern.format(', '.join([f'*{old}'] * 10))}" for old, new in pairwise("abcdefghij")]
    return "\n".join(["a: &a {x: 1}", *lines])


@pytest.mark.parametrize("content", [repeated("[{}]"), repeated("{{<<: [{}]}}"), f"seed: [{'1,' * 10_000}]"])
def test_aliases_of_aliases_are_not_expanded(tmp_path: Path, content: str) -> None:
    path = file_of(tmp_path, content)
    problem = "cannot be read: expands to more than 10,000 values; a schedule has a few hundred"
    assert message_of(load_schedule, path) == f"{path}: {problem}"


def test_a_schedule_can_use_aliases_and_merged_keys(tmp_path: Path) -> None:
    text = TEXT.replace("seed: 3", "seed: &seed 3").replace("batch_size: 8", "<<: {batch_size: 8, log_every: *seed}")
    training = load_schedule(file_of(tmp_path, text)).training
    assert (training.batch_size, training.log_every) == (8, 3)


@pytest.mark.parametrize("path", ["/dev/zero", None])
def test_reading_stops_in_an_endless_file(tmp_path: Path, path: str | None) -> None:
    path = path or file_of(tmp_path, "# " + "x" * 10**6)
    problem = "cannot be read: has more than 1,000,000 bytes; a schedule has a few thousand"
    assert message_of(load_schedule, path) == f"{path}: {problem}"


def test_a_schedule_can_come_through_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["/bin/sh", "-c", 'printf %s "$1" > "$2"', "sh", TEXT, str(tmp_path / "pipe")]):
        assert load_schedule(str(tmp_path / "pipe")).seed == 3


def test_a_missing_file_lists_the_shipped_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    comes_with = f"no such file; growctl comes with {', '.join(shipped_schedules())}"
    (tmp_path / "folder").mkdir()
    for reference in ("folder", ".", "a/b", "../schedules", "/no/such.yaml", "", "a\0b"):
        assert message_of(load_schedule, reference) == f"{reference!r}: {comes_with}"
    assert message_of(load_schedule, "x" * 5000) == f"'{'x' * 56}...: {comes_with}"
    for reference in ("quikstart", "schedules/quickstar.yaml", "no/such/quickstart"):
        assert message_of(load_schedule, reference) == f"{reference!r}: {comes_with}; did you mean 'quickstart'?"


def test_an_unreadable_file_gives_one_line(tmp_path: Path) -> None:
    memory = Path("/proc/self/mem")  # exists, is not a folder, and not even root can read it
    if not memory.exists():
        pytest.skip("no /proc here")
    assert message_of(load_schedule, str(memory)) == f"{memory}: cannot be read: Input/output error"


@pytest.mark.slow
@settings(max_examples=60)
@given(
    st.lists(
        st.builds(
            "{}{}={}".format,
            st.sampled_from(["", "", "+", "++", "~"]),
            st.sampled_from(["seed", "stages", "stages.0", "stages.2.name", "data", "data.source", "x", "controls"]),
            st.one_of(
                st.sampled_from(["", "1,2", "[1]", "{a: 1}", "[", "${x}", "${", "${stages}", "null", "glob(*)", "'"]),
                st.text(max_size=6),
            ),
        )
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
