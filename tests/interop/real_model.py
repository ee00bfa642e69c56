"""A small Llama that Transformers' Trainer trains on WikiText-2: imported, grown, trained on, exported, and scored by
lm-eval's Hugging Face loader. At each hand-over both sides must compute the same loss, to the rounding of float32.

Run by `make test-interop`. Needs ../shared/data/wikitext2-valid.txt, the extra `eval`, and no network.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers as hf
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from stages.checkpoint.pretrained import load_pretrained
from stages.evaluate.harness import GrowctlLM
from stages.metrics import read_events
from tests.workers import REPOSITORY

TEXT = REPOSITORY.parent / "shared/data/wikitext2-valid.txt"
HELD_OUT, CONTEXT, STEPS = 60_000, 128, 300  # characters that no model trains on, tokens of a window, steps of Trainer
ROUNDING = 1e-5
"""Nats per token by which two losses of float32 may differ."""

SIZES = {"vocab_size": 2048, "hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": CONTEXT}


def train_llama(folder: Path, text: str) -> None:
    """Saves the trained model in `folder` with its tokenizer, which begins each text with <s>, as Llama's does."""
    hf.set_seed(0)
    own = Tokenizer(models.BPE())
    own.pre_tokenizer, own.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    bpe = trainers.BpeTrainer(vocab_size=SIZES["vocab_size"], special_tokens=["<s>", "</s>"], show_progress=False)
    own.train_from_iterator([text], bpe)
    own.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=own, bos_token="<s>", eos_token="</s>")
    tokenizer.save_pretrained(folder)
    ids = torch.tensor([id for article in text.split("\n = ") for id in (*tokenizer(article)["input_ids"], 1)])
    rows = [{"input_ids": row, "labels": row} for row in ids[: len(ids) // CONTEXT * CONTEXT].view(-1, CONTEXT)]
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES, tie_word_embeddings=True, bos_token_id=0, eos_token_id=1))
    options: dict[str, Any] = {"max_steps": STEPS, "per_device_train_batch_size": 8, "learning_rate": 3e-3}
    options |= {"lr_scheduler_type": "cosine", "warmup_steps": 20, "save_strategy": "no", "report_to": []}
    arguments = hf.TrainingArguments(output_dir=str(folder / "trainer"), use_cpu=True, disable_tqdm=True, **options)
    hf.Trainer(model=model, args=arguments, train_dataset=rows).train()
    model.save_pretrained(folder)


def growctl(folder: Path, *arguments: object) -> str:
    command = list(map(str, (Path(sys.executable).with_name("growctl"), *arguments)))
    return subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout


def loss(folder: Path, checkpoint: Path | str, *text: str) -> float:
    scores = json.loads(growctl(folder, "eval", checkpoint, *text, "--json"))["scores"]
    return next(float(score["value"]) for score in scores if score["metric"] == "loss")


def loss_in_transformers(folder: Path, text: str) -> float:
    """What `growctl eval --text` measures, by the class and the tokenizer that Transformers loads from `folder`."""
    model, tokenizer = (each.from_pretrained(folder) for each in (hf.AutoModelForCausalLM, hf.AutoTokenizer))
    ids = torch.tensor([*tokenizer(text, verbose=False)["input_ids"], tokenizer.eos_token_id])
    with torch.no_grad():
        logits = torch.cat([model(window[None]).logits[0] for window in ids[:-1].split(CONTEXT)])
    return torch.nn.functional.cross_entropy(logits.double(), ids[1:]).item()


def score(lm: Any, text: str) -> float:
    """The mean loss of a text's tokens, as a task of lm-eval measures it."""
    request = Instance(request_type="loglikelihood_rolling", doc={}, arguments=(text,), idx=0)
    return -float(lm.loglikelihood_rolling([request], disable_tqdm=True)[0]) / len(lm.tok_encode(text))


def agree(what: str, before: float, after: float) -> None:
    print(f"{what}: {before:.7f} and {after:.7f} nats per token", flush=True)
    assert abs(before - after) <= ROUNDING, what


def main() -> None:
    """Prints the loss on both sides of each hand-over. Raises AssertionError at the first where they differ."""
    if not TEXT.is_file():
        print(f"skipped: there is no {TEXT}")
        return
    started, text = time.perf_counter(), TEXT.read_text()
    train, held = text[:-HELD_OUT], text[-HELD_OUT:]
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train").write_text(train)
        (folder / "held").write_text(held)
        train_llama(folder / "llama", train)
        growctl(folder, "import", "huggingface", "llama", "--output", "imported")
        imported = loss(folder, "imported", "--text", "held")
        agree("trained by Trainer, imported", loss_in_transformers(folder / "llama", held), imported)
        growctl(folder, "expand", "imported", "--add-ffn-tokens", 64, "--add-layers", 1, "--output", "grown")
        agree("imported, expanded", imported, loss(folder, "grown", "--text", "held"))
        # The draft keeps the beginning of text, and its stage adds some more FFN units.
        growctl(folder, "init", "on.yaml", "--from", "grown", "--params", "1.05x", "--tokens", "1M", "--data", "train")
        fewer = ("training.precision=fp32", "training.batch_size=8", "stages.0.train_tokens=100k", "launch.devices=1")
        growctl(folder, "run", "on.yaml", "--no-controls", *fewer)
        [stage], [data] = folder.glob("runs/on/stages/*"), folder.glob("runs/.datasets/train-*")
        first = read_events(stage / "metrics.jsonl", "evaluation")[0]["loss"]
        agree("expanded, run", loss(folder, "grown", "--split", "validation", "--data", str(data)), first)
        growctl(folder, "export", "on", "exported")
        final = loss(folder, "on", "--text", "held")
        agree("run, exported", final, loss_in_transformers(folder / "exported", held))
        theirs = HFLM(pretrained=str(folder / "exported"), device="cpu", dtype="float32", batch_size=8)
        ours = GrowctlLM(load_pretrained(stage / "final"), context=CONTEXT, batch_size=8)
        agree("run, scored by lm-eval", score(ours, held), score(theirs, held))
    print(f"passed in {time.perf_counter() - started:.0f} s; training on moved {imported:.3f} to {final:.3f}")


if __name__ == "__main__":
    main()
