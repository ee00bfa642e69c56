"""The commands `import` and `export`: checkpoints of other programs in and out. Slow modules are imported on use."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from growctl.cli.options import DEFAULT_RUNS_DIR, CheckpointName, Result, RunsDir, prints
from growctl.text.formatting import byte_count, short_count
from growctl.text.progress import progress_bar

if TYPE_CHECKING:
    from stages.checkpoint.manifest import Manifest

import_app = typer.Typer(
    name="import",
    help=(
        "Turn a checkpoint of another program into a growctl checkpoint.\n\n"
        "Example: growctl import huggingface HuggingFaceTB/SmolLM2-135M --output smollm2"
    ),
    no_args_is_help=True,
)


Output = Annotated[Path, typer.Option(help="Directory for the checkpoint; must not exist yet.", metavar="DIR")]


@import_app.command("huggingface")
@prints
def import_huggingface(
    model: Annotated[
        str,
        typer.Argument(help="A folder that Transformers saved, or a name on the Hugging Face Hub.", metavar="MODEL"),
    ],
    output: Output,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Do not compare the logits with those of Transformers.")
    ] = False,
) -> Result:
    """Import a Llama, Mistral, Qwen2, Qwen3 or GPT-NeoX that Transformers computes, from safetensors.

    Example: growctl import huggingface HuggingFaceTB/SmolLM2-135M --output smollm2
    """
    from stages.checkpoint.directory import check_new

    check_new(output, "--output")
    from stages.huggingface.importing import import_huggingface as import_checkpoint

    with progress_bar("writing parameters") as on_progress:
        manifest = import_checkpoint(model, output, check=not no_check, on_progress=on_progress)
    return _imported(output, manifest)


@import_app.command("official")
@prints
def import_official(
    model: Annotated[
        Path,
        typer.Argument(
            help="A .bin or .safetensors file, or a directory that DeepSpeed's zero_to_fp32.py wrote.", metavar="MODEL"
        ),
    ],
    config: Annotated[Path, typer.Option(help="The model's NeoX-style YAML, such as 150M_eval.yml.", metavar="FILE")],
    output: Output,
    tokenizer: Annotated[
        Path | None, typer.Option(help="The model's tokenizer.json, which the checkpoint then holds.", metavar="FILE")
    ] = None,
    end_of_text: Annotated[
        str | None,
        typer.Option(
            help="The tokenizer's token between documents (default: <|endoftext|>, if it has it).", metavar="TOKEN"
        ),
    ] = None,
) -> Result:
    """Import a checkpoint of the official TokenFormer code. Every tensor is checked; no pickle runs code.

    Example: growctl import official TokenFormer-150M/pytorch_model.bin --config 150M_eval.yml --tokenizer
    tokenizer.json --output 150m
    """
    from stages.checkpoint.directory import check_new

    check_new(output, "--output")
    from stages.official.importing import import_official as import_checkpoint

    with progress_bar("writing parameters") as on_progress:
        manifest = import_checkpoint(
            model, config, output, tokenizer=tokenizer, end_of_text=end_of_text, on_progress=on_progress
        )
    return _imported(output, manifest)


def _imported(output: Path, manifest: "Manifest") -> Result:
    from growctl.runs.show import WrittenCheckpoint
    from model.shapes import num_parameters
    from stages.counted import counted

    text, rows, record = manifest.text, manifest.model.vocab_size, manifest.lineage.imported
    padding = rows - (text.tokenizer_vocab_size or rows)
    lines = [
        f"{output}: {short_count(num_parameters(manifest.model))} parameters, vocabulary {rows:,}"
        + (f" ({counted(padding, 'row')} of padding)" if padding else "")
        + (f", context {text.context_length:,}" if text.context_length else "")
    ]
    if record and record.check:
        lines.append(f"original: {record.check}")
    if text.tokenizer_vocab_size is None:
        lines.append("It has no tokenizer; commands that read or write text need --tokenizer FILE.")
    if text.begin_of_text:
        lines.append(
            f"Its tokenizer puts {text.begin_of_text} before each text, and so does growctl; to train it further, set "
            "data.begin_of_text to that, as `growctl init --from` does."
        )
    return Result(WrittenCheckpoint.of(output, manifest), lines)


@prints
def export(
    checkpoint: CheckpointName,
    output: Annotated[Path, typer.Argument(help="Directory for the export; must not exist yet.", metavar="DIR")],
    to: Annotated[
        Literal["huggingface"], typer.Option(help="The layout to write, which Transformers loads.")
    ] = "huggingface",
    dtype: Annotated[Literal["float32", "bfloat16"], typer.Option(help="Precision of the weights.")] = "float32",
    tokenizer: Annotated[
        Path | None, typer.Option(help="A tokenizer.json (default: the checkpoint's).", metavar="FILE")
    ] = None,
    context_length: Annotated[
        int | None, typer.Option(help="Tokens of a training sequence, for a checkpoint that does not record it.", min=1)
    ] = None,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Do not compare the export's logits with the checkpoint's.")
    ] = False,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
) -> Result:
    """Write a checkpoint's model as a directory that Transformers loads, with a model card.

    Example: growctl export quickstart quickstart-hf --to huggingface
    """
    from stages.checkpoint.directory import check_new
    from stages.counted import counted

    check_new(output)
    from growctl.evaluate.model_card import model_card
    from growctl.evaluate.pretrained import open_pretrained
    from growctl.runs.show import read_facts
    from stages.huggingface.export import export_huggingface

    with open_pretrained(checkpoint, runs_dir, tokenizer=tokenizer, device="cpu") as pretrained:
        pretrained.manifest.reject_options_of_text({"--context-length": context_length, "--tokenizer": tokenizer})
        written = export_huggingface(
            pretrained,
            output,
            card=partial(model_card, read_facts(pretrained.directory, pretrained.manifest)),
            dtype=dtype,
            context_length=context_length,
            check=not no_check,
        )
    trust = ", trust_remote_code=True" if written.needs_trust_remote_code else ""
    size, files = byte_count(written.weight_bytes), counted(written.num_weight_files, "file")
    lines = [
        f"{output}: {written.architecture}, {written.dtype}, {size} of weights in {files}",
        f"compared with the checkpoint: {written.check}",
        f"To load it: AutoModelFor{written.architecture.partition('For')[2]}.from_pretrained({str(output)!r}{trust})",
    ]
    return Result(written, lines)
