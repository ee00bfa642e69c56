"""What an exported folder can do in Transformers. A check that fails raises an error.

Imports nothing of growctl's: `make test-interop` runs this file in environments that do not have it.
"""

import sys
import traceback
from collections.abc import Callable
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer

PROMPTS = ("the cat sat", "in the inn. the cat", "t")
NEW_TOKENS = 12


def load(folder: Path, **options: Any) -> Any:
    """The model, as the model card loads it."""
    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, **({"dtype": torch.float32} | options))


def tokenizer_of(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=True)


def greedy(model: Any, tokenizer: Any, prompts: list[str], **options: Any) -> list[list[int]]:
    """The new ids after each prompt, up to the end of the text."""
    inputs = tokenizer(prompts, return_tensors="pt", padding=True)
    ids = model.generate(**inputs, max_new_tokens=NEW_TOKENS, **({"do_sample": False} | options))
    return [_until_end(row, tokenizer.eos_token_id) for row in ids[:, inputs["input_ids"].shape[1] :].tolist()]


def step_logits(model: Any, tokenizer: Any, prompts: list[str], **options: Any) -> Tensor:
    """The logits that each of the greedy new ids was chosen from, (B, NEW_TOKENS, V)."""
    inputs = tokenizer(prompts, return_tensors="pt", padding=True)
    options |= {"min_new_tokens": NEW_TOKENS, "max_new_tokens": NEW_TOKENS, "do_sample": False}
    output = model.generate(**inputs, return_dict_in_generate=True, output_logits=True, **options)
    return torch.stack(output.logits, dim=1)


def _until_end(ids: list[int], end: int) -> list[int]:
    return ids[: ids.index(end) + 1] if end in ids else ids


@torch.no_grad()
def logits_of(model: Any, ids: Tensor, **options: Any) -> Tensor:
    logits: Tensor = model(ids, **options).logits
    return logits


def some_ids(model: Any, shape: tuple[int, int] = (2, 24)) -> Tensor:
    unused = model.generation_config.suppress_tokens or [model.config.vocab_size]
    return torch.randint(1, min(unused), shape, generator=torch.Generator().manual_seed(1))


def gives_the_logits_of_the_checkpoint(folder: Path) -> None:
    """Within 1e-5. The reference lies beside the folder."""
    reference = load_file(folder.with_name(f"{folder.name}.reference.safetensors"))
    difference = (logits_of(load(folder), reference["input_ids"]) - reference["logits"]).abs().max().item()
    assert difference <= 1e-5, difference


def loads_by_every_auto_class(folder: Path) -> None:
    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    base, model = AutoModel.from_pretrained(folder, trust_remote_code=True, dtype=torch.float32), load(folder)
    ids = some_ids(model)
    with torch.no_grad():
        hidden = base(ids).last_hidden_state
        torch.testing.assert_close(model.lm_head(hidden), model(ids).logits)
        torch.testing.assert_close(model(ids, logits_to_keep=2).logits, model(ids).logits[:, -2:])
        assert len(model(ids, output_hidden_states=True).hidden_states) == config.num_hidden_layers + 1


def keeps_its_tokenizer(folder: Path) -> None:
    """That of the checkpoint, which lies beside the folder, with the token that it adds if the model knows it."""
    tokenizer = tokenizer_of(folder)
    trained_with = Tokenizer.from_file(str(folder.with_name(f"{folder.name}.checkpoint") / "tokenizer.json"))
    text = f"In the end,\n the  inn é don't{tokenizer.eos_token} ok"
    expected = trained_with.encode(text, add_special_tokens=tokenizer.bos_token is not None).ids
    assert tokenizer(text)["input_ids"] == expected
    assert tokenizer.decode(expected) == f"{tokenizer.bos_token or ''}{text}"
    padded = tokenizer(list(PROMPTS), padding=True)
    assert padded["attention_mask"][-1][0] == 0, "pads on the left"


def runs_the_code_in_its_model_card(folder: Path) -> None:
    _, _, after = (folder / "README.md").read_text().partition("```python\n")
    code, printed = after.partition("```")[0], StringIO()
    with redirect_stdout(printed), chdir(folder.parent):
        exec(code, {})
    assert "Once upon a time" in printed.getvalue(), printed.getvalue()


def generates_with_a_cache_what_it_generates_without(folder: Path) -> None:
    model, tokenizer = load(folder), tokenizer_of(folder)
    found = greedy(model, tokenizer, [PROMPTS[1]])
    assert found == greedy(model, tokenizer, [PROMPTS[1]], cache_implementation="static", disable_compile=True)
    beams = [greedy(model, tokenizer, list(PROMPTS), num_beams=3, use_cache=use_cache) for use_cache in (True, False)]
    assert beams[0] == beams[1]
    cached, full = (step_logits(model, tokenizer, [PROMPTS[1]], use_cache=use_cache) for use_cache in (True, False))
    torch.testing.assert_close(cached, full, atol=1e-4, rtol=1e-4)


def generates_in_left_padded_batches_what_it_generates_alone(folder: Path) -> None:
    model, tokenizer = load(folder), tokenizer_of(folder)
    alone = torch.cat([step_logits(model, tokenizer, [prompt]) for prompt in PROMPTS])
    torch.testing.assert_close(step_logits(model, tokenizer, list(PROMPTS)), alone, atol=1e-4, rtol=1e-4)


def never_generates_ids_without_a_token(folder: Path) -> None:
    model, tokenizer = load(folder), tokenizer_of(folder)
    unused = model.generation_config.suppress_tokens
    with torch.no_grad():  # without suppression, they would be likely
        model.lm_head.weight[min(unused) :] = 100 * model.lm_head.weight.mean(0)
    torch.manual_seed(0)
    for options in ({}, {"do_sample": True, "temperature": 5.0}, {"num_beams": 2}):
        ids = greedy(model, tokenizer, list(PROMPTS), **options)
        assert max(map(max, ids)) < min(unused)


def runs_in_bfloat16(folder: Path) -> None:
    exact, model = load(folder), load(folder, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    ids = some_ids(model)
    expected = logits_of(exact, ids)
    error = (logits_of(model, ids).float() - expected).std() / expected.std()
    assert error < 0.05, error
    greedy(model, tokenizer_of(folder), [PROMPTS[0]])


def attends_by_every_implementation(folder: Path) -> None:
    """By sdpa, eager and one of the user's, as vLLM and SGLang bring their own."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    seen: list[dict[str, Any]] = []

    def attend(module: Any, *arguments: Any, **options: Any) -> Any:
        seen.append(options)
        return sdpa_attention_forward(module, *arguments, **options)

    AttentionInterface.register("of_the_user", attend)
    model = load(folder)
    ids = some_ids(model)
    expected = logits_of(model, ids)
    eager = load(folder, attn_implementation="eager")
    torch.testing.assert_close(logits_of(eager, ids), expected, atol=1e-5, rtol=1e-5)
    own = load(folder, attn_implementation="of_the_user")
    mask = torch.ones(2, 1, ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
    masked = logits_of(own, ids, attention_mask=mask, of_the_engine=7)
    torch.testing.assert_close(masked, expected, atol=1e-5, rtol=1e-5)
    assert len(seen) == own.config.num_hidden_layers
    assert all(options["of_the_engine"] == 7 for options in seen), "keywords reach the attention"
    weights = eager(ids, output_attentions=True).attentions
    assert weights[0].shape == (2, own.config.num_attention_heads, ids.shape[1], ids.shape[1])


def checkpoints_gradients(folder: Path) -> None:
    gradients = []
    for checkpointing in (False, True):
        model = load(folder).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
            assert model.is_gradient_checkpointing
        ids = some_ids(model)
        model(ids, labels=ids).loss.backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    assert all(gradient is not None for gradient in gradients[0].values())
    torch.testing.assert_close(gradients[1], gradients[0])


def trains_with_trainer(folder: Path) -> None:
    """Three steps; what it saves loads again, with the code."""
    with TemporaryDirectory() as output:
        model = load(folder)
        _train(model, Path(output) / "training")
        model.save_pretrained(Path(output) / "saved", max_shard_size="20KB")
        ids = some_ids(model)
        torch.testing.assert_close(logits_of(load(Path(output) / "saved"), ids), logits_of(model.eval(), ids))


def _train(model: Any, output: Path) -> None:
    from transformers import Trainer, TrainingArguments

    row = some_ids(model, (1, 24))[0]
    arguments = TrainingArguments(
        output_dir=str(output),
        max_steps=3,
        per_device_train_batch_size=2,
        learning_rate=3e-3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        gradient_checkpointing=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=[{"input_ids": row, "labels": row}] * 6)
    with redirect_stdout(StringIO()):  # Trainer prints its logs
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(set(losses)) == 3, "each update changes the model"


def trains_lora_on_parameter_tokens(folder: Path) -> None:
    """PEFT adapts raw parameters that `target_parameters` names; merged and reloaded adapters compute the same."""
    from peft import AutoPeftModelForCausalLM, LoraConfig, get_peft_model

    base = load(folder)
    names = [name.split(".") for name, _ in base.named_parameters()]
    targets = sorted({".".join(name[-2:]) for name in names if name[-2] in ("query", "value", "ffn")})
    ids = some_ids(base)
    before = logits_of(base, ids)
    model = get_peft_model(base, LoraConfig(r=2, lora_alpha=4, target_parameters=targets, task_type="CAUSAL_LM"))
    torch.testing.assert_close(logits_of(model, ids), before)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert len(trained) == 2 * len(targets) * base.config.num_hidden_layers
    assert all("lora_" in name for name in trained)
    with TemporaryDirectory() as output:
        _train(model, Path(output) / "training")
        after = logits_of(model.eval(), ids)
        assert (after - before).abs().max() > 1e-3
        saved = Path(output) / "adapter"
        model.save_pretrained(saved)
        again = AutoPeftModelForCausalLM.from_pretrained(saved, trust_remote_code=True, dtype=torch.float32)
        torch.testing.assert_close(logits_of(again.eval(), ids), after)
    torch.testing.assert_close(logits_of(model.merge_and_unload(), ids), after, atol=1e-5, rtol=1e-5)


def loads_with_a_device_map(folder: Path) -> None:
    model, tokenizer = load(folder), tokenizer_of(folder)
    ids = some_ids(model)
    expected, text = logits_of(model, ids), greedy(model, tokenizer, list(PROMPTS))
    torch.testing.assert_close(logits_of(load(folder, device_map="auto"), ids), expected)
    last = model.config.num_hidden_layers - 1
    places = {name: "cpu" for name, module in model.named_modules() if name.count(".") == 1 and "layers" not in name}
    prefix = next(name for name, _ in model.named_modules() if name.endswith(".layers"))
    places |= {f"{prefix}.{i}": "disk" if i == last else "cpu" for i in range(last + 1)} | {"lm_head": "cpu"}
    with TemporaryDirectory() as offloaded:
        split = load(folder, device_map=places, offload_folder=offloaded)
        torch.testing.assert_close(logits_of(split, ids), expected)
        assert greedy(split, tokenizer, list(PROMPTS)) == text


def scales_its_rotary_embedding(folder: Path) -> None:
    """Linear and YaRN, as `rope_parameters` name them: the logits are those with the tables of a GPT-NeoX."""
    model = load(folder)
    modeling, ids = sys.modules[type(model).__module__], some_ids(model)
    plain = logits_of(model, ids)
    for scaling in ({"rope_type": "linear", "factor": 2.0}, {"rope_type": "yarn", "factor": 4.0}):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
        config.rope_parameters |= scaling | {"original_max_position_embeddings": config.max_position_embeddings}
        scaled = logits_of(load(folder, config=config), ids)
        with patch.object(modeling, "rotation", _tables_of_gpt_neox(config)):
            torch.testing.assert_close(logits_of(model, ids), scaled, atol=1e-5, rtol=1e-5)
        assert (scaled - plain).abs().max() > 1e-3, f"{scaling} changes nothing"


def _tables_of_gpt_neox(config: Any) -> Callable[..., Any]:
    """Stands in for the export's own `rotation`."""
    from transformers import GPTNeoXConfig
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding

    same = ("hidden_size", "num_attention_heads", "max_position_embeddings", "rope_parameters")
    tables = GPTNeoXRotaryEmbedding(GPTNeoXConfig(**{name: getattr(config, name) for name in same}))
    return lambda _, position_ids, like: tables(like, position_ids)


FOR_ALL: list[Callable[[Path], None]] = [
    gives_the_logits_of_the_checkpoint,
    loads_by_every_auto_class,
    keeps_its_tokenizer,
    runs_the_code_in_its_model_card,
    generates_with_a_cache_what_it_generates_without,
    generates_in_left_padded_batches_what_it_generates_alone,
    never_generates_ids_without_a_token,
    runs_in_bfloat16,
    checkpoints_gradients,
    trains_with_trainer,
    loads_with_a_device_map,
]
"""Checks of every export."""

OF_TOKENFORMERS: list[Callable[[Path], None]] = [
    attends_by_every_implementation,
    trains_lora_on_parameter_tokens,
    scales_its_rotary_embedding,
]
"""Checks of the modeling code that exports of Tokenformers hold."""


def silence() -> None:
    """Turns off what Transformers prints while it loads."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def main(folders: list[Path]) -> int:
    """Prints a line for each check of each folder. Returns the number of failures."""
    import peft

    print(f"transformers {transformers.__version__}, peft {peft.__version__}, torch {torch.__version__}")
    silence()
    failures = 0
    for folder in folders:
        own_code = (folder / "modeling_tokenformer.py").exists()
        for check in FOR_ALL + (OF_TOKENFORMERS if own_code else []):
            name = f"{folder.name}: {check.__name__.replace('_', ' ')}"
            try:
                check(folder)
                print(f"  ok    {name}", flush=True)
            except Exception:
                failures += 1
                print(f"  FAIL  {name}: {traceback.format_exc()}", flush=True)
    return failures


if __name__ == "__main__":
    sys.exit(1 if main([Path(argument) for argument in sys.argv[1:]]) else 0)
