"""What `growctl export --to huggingface` does and prints. Slow modules are imported on use."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from growctl.text.escaping import say
from stages.counted import counted

if TYPE_CHECKING:
    from stages.huggingface.same_logits import LogitsCheck

_tell = partial(say, error=True)


def export_huggingface(
    checkpoint: str,
    output: Path,
    runs_dir: Path,
    as_json: bool,
    *,
    keep_generations: bool,
    dtype: Literal["float32", "bfloat16"],
    max_shard_size: str,
    tokenizer: Path | None,
    context_length: int | None,
    check: bool,
) -> None:
    """Exports the checkpoint that the user names, and prints what was written and whether it was checked."""
    max_shard_bytes = _size(max_shard_size)
    from growctl.evaluate.pretrained import open_pretrained
    from growctl.model_card.facts import card_facts
    from growctl.runs.show import read_facts
    from stages.huggingface.card import model_card
    from stages.huggingface.export import export_huggingface as export_folder

    with open_pretrained(checkpoint, runs_dir, _tell, tokenizer=tokenizer, device="cpu") as pretrained:
        source = pretrained.directory
        facts = card_facts(read_facts(source, runs_dir, pretrained.manifest), output.absolute().name)
        export = export_folder(
            pretrained,
            output,
            card=partial(model_card, facts),
            keep_generations=keep_generations,
            dtype=dtype,
            max_shard_bytes=max_shard_bytes,
            context_length=context_length,
            check=check,
        )
    if as_json:
        from growctl.cli.written import HuggingFaceDocument
        from growctl.text.documents import print_document

        print_document(HuggingFaceDocument.of(export, source, output))
        return
    from growctl.text.formatting import byte_count

    trust = ", trust_remote_code=True" if export.own_code else ""
    files = counted(len(export.weight_files), "file")
    say(f"{output}: {export.architecture}, {export.dtype}, {byte_count(export.weight_bytes)} of weights in {files}")
    say(_check_words(export.check))
    say(f"To load it: AutoModelForCausalLM.from_pretrained({str(output)!r}{trust})")


def _size(text: str) -> int:
    """`text` such as 5GB in bytes. Raises UserError if it is no size."""
    from growctl.schedule.quantities import parse_size
    from model.errors import UserError

    try:
        size = parse_size(text)
    except ValueError as error:
        raise UserError(f"--max-shard-size {text!r}: {error}") from None
    if size <= 0:
        raise UserError(f"--max-shard-size {text!r}: must be more than 0 bytes")
    return size


def _check_words(check: "LogitsCheck | None") -> str:
    if check is None:
        return "Not checked, because of --no-check."
    if check.difference is None:
        return f"Not checked: {check.why_not}."
    return (
        f"Checked: Transformers {check.transformers} computes the checkpoint's logits; the largest difference in "
        f"float32 is {check.difference:.2g} ({check.allowed:.2g} allowed)."
    )
