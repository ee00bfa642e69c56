"""growctl's source has no call that could run code from a file it opens.

How a pickle is refused that comes as an official checkpoint: tests/stages/official/test_importing.py.
"""

import ast
from collections.abc import Iterator

import pytest

from tests.workers import REPOSITORY

RUNS_CODE = {
    *("eval", "exec", "compile", "__import__", "os.system", "os.popen", "subprocess.getoutput"),
    *("pickle.load", "pickle.loads", "pickle.Unpickler", "cloudpickle.load", "dill.load", "joblib.load", "shelve.open"),
    *("marshal.load", "marshal.loads", "torch.jit.load", "torch.hub.load", "yaml.unsafe_load", "yaml.full_load"),
    *("pandas.read_pickle", "hydra.utils.instantiate", "hydra.utils.call"),
}
NEEDS = {
    "torch.load": ("weights_only", "True"),
    "yaml.load": ("Loader", "yaml.SafeLoader"),
    "yaml.compose": ("Loader", "yaml.SafeLoader"),
}
"""Calls that are harmless with a certain argument."""

OWN_CODE = {"stages/huggingface/same_logits.py": 1, "stages/plain_yaml.py": 1}
"""Files that may make so many of these calls: one loads an export that growctl has just written, one parses YAML with
OmegaConf's loader, which is a SafeLoader (tests/growctl/schedule/test_files.py)."""


def dangerous_calls(source: str) -> Iterator[str]:
    """Calls in a program that could run code from a file or a shell."""
    for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
        name = ast.unparse(call.func)
        arguments = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        key, value = NEEDS.get(name, ("", ""))
        if (
            name in RUNS_CODE
            or (key and arguments.get(key) != value)
            or arguments.get("allow_pickle", "False") != "False"
            or arguments.get("trust_remote_code", "False") != "False"
            or arguments.get("shell", "False") != "False"
        ):
            yield ast.unparse(call)


@pytest.mark.parametrize(
    "call",
    [
        *("eval(t)", "pickle.load(f)", "torch.load(f)", "numpy.load(f, allow_pickle=True)", "run(c, shell=True)"),
        *("yaml.load(t, Loader=yaml.Loader)", "AutoModel.from_pretrained(p, trust_remote_code=True)"),
    ],
)
def test_a_dangerous_call_is_found(call):
    assert list(dangerous_calls(call)) == [call]


@pytest.mark.parametrize("package", ["growctl", "stages", "model", "benchmarks", "tools"])
@pytest.mark.slow
def test_no_call_opens_a_pickle_runs_text_or_starts_a_shell(package):
    sources = sorted((REPOSITORY / package).rglob("*.py"))
    assert sources
    for path in sources:
        calls = list(dangerous_calls(path.read_text()))
        assert len(calls) == OWN_CODE.get(str(path.relative_to(REPOSITORY)), 0), (path, calls)
