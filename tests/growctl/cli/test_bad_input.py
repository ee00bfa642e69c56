"""Unusable input of any command: one message that names it, exit code 2, and nothing is written."""

from pathlib import Path

import pytest

from growctl.evaluate import inspection
from tests.growctl.runs import UNUSABLE_INPUT, run_here
from tests.growctl.schedules import TEXT
from tests.pretrained import byte_tokenizer, text_config, write_pretrained
from tests.stages.checkpoints import small_config, write_checkpoint
from tests.stages.grow.test_compare import rewrite

EXPAND = "expand final --output x"
"""An expand to which only what to add is missing."""

BAD = {
    EXPAND: "nothing to add; set --add-tokens, --add-ffn-tokens, --add-heads or --add-layers, or --widen",
    f"{EXPAND} --add-layers 1 --layer-tokens 5": "--layer-ffn-tokens",
    f"{EXPAND} --add-layers 2 --depth copy-stack": "needs allow_jump",
    f"{EXPAND} --add-tokens 8 --layers 0-2": "must be numbers and ranges below 2",
    "expand flat --add-tokens 3 --output x": "has no layers that tokens could be added to",
    "expand final --add-tokens 4 --output final": "final already exists",
    "expand final --add-tokens 4 --output link/new": "link is not a directory",
    "import official nowhere.bin --config nowhere.yml --output final": "final already exists",
    "export final final --to huggingface": "final already exists",
    "export bare x --to huggingface": "--tokenizer FILE",
    "export bare x --to huggingface --tokenizer tokenizer.json": "has 261 token ids, but the model",
    "export unmeasured x --to huggingface --tokenizer tokenizer.json": "--context-length N",
    "inspect final": "there is no dataset",
    "inspect final --text short.txt --context 12": "has 4 tokens, but one window of --context 12 needs 13",
    "inspect final other --text text.txt": "other has another tokenizer than final",
    "inspect final wider --text text.txt": "wider has another vocabulary than final",
    "inspect nowhere --text text.txt": "nowhere is neither a path nor a run",
    "inspect final --text text.txt --picture text.txt": "--picture text.txt: must be a new file",
    "generate final x --top-p 0": "--top-p 0.0",
    f"generate final {'x' * 33}": "with a context of 32 tokens it may have 31",
    "generate final x --top-k-tokens 1,2": "give one",
    "generate final x --device cuda:99": "--device 'cuda:99'",
    "eval final": "give one of --text, --split, --tasks",
    "eval final --text nowhere.txt": "--text nowhere.txt",
    "eval final --text text.txt --stride 33": "at most the context of 32",
    "eval final --text text.txt --rope-scaling ntk": "--rope-scaling has no effect with --text",
    "eval final --text text.txt --contexts 64,x": "--contexts 'x'",
    "eval final --text text.txt --top-k-tokens 6": "top-k tokens = 6: of each query Pattention, only 5 are read",
    "eval final --text text.txt --top-k-tokens 2,1.5": "--top-k-tokens '1.5': must be a number of tokens",
    "eval final --text text.txt --top-k-norm chosen": "has no effect without --top-k-tokens",
    "eval final --text text.txt --contexts 16 --top-k-tokens 2": "--top-k-tokens has no effect with --contexts",
    "eval unmeasured --text text.txt": "give --context N",
    "init --params 0": "greater than or equal to 150000",
    "init --params 1M s.yaml": "s.yaml: File exists",
    "validate seed=4": "give a schedule",
    "report": "there are no runs in",
    "report --runs-dir nowhere": "nowhere",
    "run s.yaml --runs-dir file": "file",
    "run quikstart": "did you mean 'quickstart'?",
    "run quickstart --name ../escape": "--name '../escape'",
    "run quickstart --seeds=-1": "seed = -1: must be greater than or equal to 0",
    "run quickstart --seeds=": "seed = ",
    "run s.yaml training.batch_size=9 launch.devices=2 launch.micro_batch_size=1": "a multiple of 2, for 2 devices",
    "sweep quickstart seeed=1,2": "seeed = 1: no such key; did you mean 'seed'?",
    "sweep quickstart seed=0,1 --name ../up": "--name '../up': must be letters, digits",
    "sweep quickstart seed=0,1 --until 115": "its stages are 115k, 164k, 262k; did you mean '115k'?",
    "verify final": "give NEW too, or --integrity",
    "verify --integrity nowhere": "nowhere does not exist",
    "data show texts": "is not a dataset",
    "data show http://127.0.0.1:1/web": "cannot be reached",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with checkpoints, some that do not fit together, texts, and things that are in the way."""
    folder = tmp_path_factory.mktemp("place")
    for name in ("final", "other"):
        write_pretrained(folder / name)
    rewrite(folder / "other", tokenizer_sha256="f" * 64)
    write_pretrained(folder / "wider", text_config(300))
    write_pretrained(folder / "unmeasured", context_length=None)
    write_checkpoint(folder / "bare")
    write_checkpoint(folder / "flat", small_config(num_layers=0))
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    for name, content in {"text.txt": "the cat ate the rest of it " * 20, "short.txt": "abc", "s.yaml": TEXT}.items():
        (folder / name).write_text(content)
    (folder / "file").touch()
    (folder / "link").symlink_to("gone")
    for name in ("texts", "runs"):
        (folder / name).mkdir()
    return folder


@pytest.mark.parametrize(("words", "message"), BAD.items(), ids=[ascii(words)[1:60] for words in BAD])
def test_unusable_input_gives_one_message_and_writes_nothing(place, monkeypatch, words, message):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    if "--picture" in words:
        monkeypatch.setattr(inspection, "inspect_checkpoints", lambda *_, **__: pytest.fail("it measured"))
    before = sorted(place.rglob("*"))
    out, err = run_here(*words.split(), expect=UNUSABLE_INPUT, cwd=place)
    [line] = [line for line in err.splitlines() if "growctl: " in line]
    assert message in line
    assert "Traceback" not in out + err
    assert sorted(place.rglob("*")) == before
