"""`growctl inspect`: measures checkpoints on the same text, and shows it. Slow modules are imported on use."""

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, groupby
from pathlib import Path
from typing import TYPE_CHECKING

from growctl.evaluate.evaluation import readings_parts
from growctl.evaluate.pretrained import open_pretrained
from growctl.text.escaping import visible
from growctl.text.formatting import short_count
from growctl.text.progress import progress_bar
from growctl.text.section import Cell, Column, Paragraph, Part, Section, Table, figure
from model.errors import Failure, UserError
from model.tokenformer_config import PATTENTIONS
from model.top_tokens import TopTokens, require_tokens
from stages.checkpoint.manifest import Manifest, read_manifest
from stages.counted import counted
from stages.evaluate.results import Reading
from stages.inspect.facts import DEAD_BELOW, Inspected, Layer
from stages.stage_dir import TOKENIZER_NAME

if TYPE_CHECKING:
    from torch import Tensor

    from stages.checkpoint.pretrained import Pretrained

QUANTITIES: dict[str, Callable[[Layer], float | None]] = {
    "gradient norm": lambda layer: layer.gradient.mean,
    "gradient gain": lambda layer: layer.gradient_gain,
    "kurtosis of the output": lambda layer: layer.output.kurtosis,
}
"""What is compared layer by layer, in tables and in the picture."""

_number, _percent = (partial(figure, shown=shown) for shown in ("{:.3g}", "{:.1%}"))


@dataclass(frozen=True)
class InspectedText:
    """The text or the images that were measured on."""

    source: str
    num_sequences: int
    """Windows of text, or images."""
    context: int | None
    """Tokens per window; None for images."""
    batch_size: int


@dataclass(frozen=True, kw_only=True)
class InspectedCheckpoint(Inspected):
    """One checkpoint on the text."""

    name: str
    """As the user named it."""
    readings: tuple[Reading, ...] = ()
    """With `--top-k-tokens`, the loss at each number of parameter tokens read; the first is `loss`."""

    @property
    def scores_word(self) -> str:
        """The score function as a word for people; `linear` for a decoder."""
        return (self.score_function or "linear").replace("l2_norm", "l2").replace("_", "-")


@dataclass(frozen=True, kw_only=True)
class InspectDocument:
    """What was measured in each checkpoint on the same text."""

    text: InspectedText
    models: tuple[InspectedCheckpoint, ...]

    def sections(self) -> list[Section]:
        """The conclusion, the comparison of the models, then every layer and generation. Models are numbered."""
        text = self.text
        batches = counted(text.num_sequences // text.batch_size, "batch", "batches")
        samples = counted(text.num_sequences, "window" if text.context else "image")
        samples += f" of {counted(text.context, 'token')}" if text.context else ""
        size = Paragraph(f"{samples}, in {batches} of {text.batch_size}")
        advice = Paragraph("Compare checkpoints that ran the same schedule but for the score function.")
        parts = (_conclusion(self.models), size, _models(self.models), *_comparisons(self.models), advice)
        return [
            Section("models", f"Models on {text.source}", parts),
            *(
                Section(f"model-{number}", f"{number}: {model.name}", tuple(_model_parts(model)))
                for number, model in enumerate(self.models, 1)
            ),
        ]


def inspect_checkpoints(
    checkpoints: Sequence[tuple[str, Path]],
    texts: Sequence[Path],
    dataset: Path | None,
    *,
    num_sequences: int,
    context: int | None,
    batch_size: int,
    runs_dir: Path,
    tokenizer: Path | None,
    device: str,
    tops: Sequence[TopTokens] = (),
) -> InspectDocument:
    """Measures the checkpoints (name, directory) on `texts`, files or folders of them, or else on windows of the
    validation split of `dataset`. One model is in memory at a time.

    Windows have `context` tokens (None: the shortest context of the checkpoints). Raises UserError for unusable
    choices, before anything is measured, and Failure for a loss that is not finite.
    """
    from stages.evaluate.documents import text_files
    from stages.evaluate.readings import readings
    from stages.inspect.measure import inspect_model, mean_loss

    manifests = [read_manifest(path) for _, path in checkpoints]
    for manifest in manifests:
        require_tokens(manifest.model, tops)
    manifests[0].reject_options_of_text({"--text": texts, "--context": context, "--tokenizer": tokenizer})
    _check_inputs(checkpoints, manifests)
    files, is_text = text_files(texts), manifests[0].model.image is None
    context = (context or _shortest_context(checkpoints, manifests)) if is_text else 0
    if dataset is not None and tokenizer is None and is_text:
        tokenizer = dataset / TOKENIZER_NAME  # the one that made the tokens: a checkpoint need not have its own
    models: list[InspectedCheckpoint] = []
    text: InspectedText | None = None
    batches = count(1)
    with progress_bar("reading") as on_progress:

        def on_batch() -> None:
            assert text is not None
            on_progress(next(batches), len(checkpoints) * text.num_sequences // text.batch_size, name)

        for name, path in checkpoints:
            with open_pretrained(str(path), runs_dir, tokenizer=tokenizer, device=device) as opened:
                if text is None:
                    samples = _read(opened, files, dataset, num_sequences, context)
                    batch_size = min(batch_size, len(samples[0]))
                    measured = len(samples[0]) - len(samples[0]) % batch_size
                    source = f"the validation split of {dataset.name}" if dataset else ", ".join(map(str, texts))
                    text = InspectedText(source, measured, context or None, batch_size)
                    num_ids = opened.num_token_ids
                try:
                    inspected = inspect_model(opened.model, *samples, text.batch_size, on_batch, num_token_ids=num_ids)
                except Failure as error:
                    raise Failure(f"{name}: {error}") from error
                loss = partial(mean_loss, opened.model, *samples, text.batch_size, num_ids)
                read = tuple(readings(opened.model, tops, samples[1].shape[-1], inspected.loss, loss, by_layer=True))
            models.append(InspectedCheckpoint(name=name, readings=read, **vars(inspected)))
    assert text is not None
    return InspectDocument(text=text, models=tuple(models))


def _read(
    opened: "Pretrained", files: Sequence[Path], dataset: Path | None, num_sequences: int, context: int
) -> "tuple[Tensor, Tensor]":
    """Inputs and targets: of the dataset or of `files`, with the tokenizer of the first checkpoint."""
    import torch

    from stages.data.evaluation_windows import EvaluationWindows
    from stages.evaluate.text import require_ids
    from stages.inspect.measure import text_windows

    if dataset is None:
        tokens_ST = text_windows(files, opened.tokenizer, opened.text, num_sequences, context)
    elif image := opened.manifest.model.image:
        from stages.images.samples import SplitImages  # needs the extra for images

        images = SplitImages(dataset, "validation", image, num_sequences)
        pixels, classes = images.batch(0, len(images))
        return torch.from_numpy(pixels), torch.from_numpy(classes)
    else:
        require_ids(opened, dataset)
        windows = EvaluationWindows(dataset, "validation", context, num_sequences)
        tokens_ST = torch.from_numpy(windows.batch(0, len(windows)))
    return tokens_ST[:, :-1], tokens_ST[:, 1:]


def _check_inputs(checkpoints: Sequence[tuple[str, Path]], manifests: Sequence[Manifest]) -> None:
    """Raises UserError unless all checkpoints read the same: else losses are of different tokens or images."""
    first: dict[str, tuple[object, str]] = {}
    for (name, _), manifest in zip(checkpoints, manifests, strict=True):
        image = manifest.model.image
        for what, value in (
            ("kind or size of input", (image.size, image.channels) if image else "text"),
            ("set of classes", manifest.classes),
            ("tokenizer", manifest.tokenizer_sha256),
            ("vocabulary", manifest.model.vocab_size),
        ):
            if value is not None and first.setdefault(what, (value, name))[0] != value:
                raise UserError(f"{name} has another {what} than {first[what][1]}; inspect them one by one")


def _shortest_context(checkpoints: Sequence[tuple[str, Path]], manifests: Sequence[Manifest]) -> int:
    contexts = [manifest.context_length for manifest in manifests if manifest.context_length]
    if not contexts:
        raise UserError(f"{checkpoints[0][0]} does not say how long its training sequences were; give --context N")
    return min(contexts)


def _table(key: str, headings: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    columns = [Column(heading, heading not in ("model", "scores", "layer")) for heading in headings]
    return Table.of(
        key, columns, [[cell if isinstance(cell, Cell) else Cell(str(cell)) for cell in row] for row in rows]
    )


def _conclusion(models: Sequence[InspectedCheckpoint]) -> Paragraph:
    """The model with the lowest loss, and how many of its parameter tokens do nothing."""
    best = min(models, key=lambda model: model.loss)
    dead = f", with {best.num_dead or 'no'} dead parameter tokens" if best.score_function else ""
    lowest = f"the lowest of {len(models)} losses" if len(models) > 1 else "a loss"
    return Paragraph(f"{best.name} has {lowest}, {best.loss:.3f}{dead}.")


def _models(models: Sequence[InspectedCheckpoint]) -> Table:
    rows = []
    for number, model in enumerate(models, 1):
        kurtosis = [layer.output.kurtosis for layer in model.layers if layer.output.kurtosis is not None]
        rows.append(
            (
                *(str(number), model.name, model.scores_word, short_count(model.num_parameters), f"{model.loss:.3f}"),
                *(_number(model.gradient.mean), _percent(model.gradient.spread), _number(model.depth_ratio)),
                _number(max(kurtosis, default=None)),
            )
        )
    headings = ("", "model", "scores", "size", "loss", "gradient norm", "spread", "depth ratio", "kurtosis")
    return _table("models", headings, rows)


def _comparisons(models: Sequence[InspectedCheckpoint]) -> Iterator[Part]:
    """Every quantity by kind of layer, averaged over the blocks, the models side by side."""
    if len(models) == 1:
        return
    headings = ("layer", *(f"{number} {model.scores_word}" for number, model in enumerate(models, 1)))
    names = dict.fromkeys(layer.name for model in models for layer in model.layers)
    for title, quantity in QUANTITIES.items():
        rows = [(name, *(_number(_mean(model, name, quantity)) for model in models)) for name in names]
        yield Paragraph(title, "heading")
        yield _table("layers", headings, rows)


def _model_parts(model: InspectedCheckpoint) -> Iterator[Part]:
    yield Paragraph(f"{model.family}, every layer", "heading")
    rows = []
    for layer in model.layers:
        cells: list[object] = [layer.block, layer.name, _number(layer.gradient.mean), _percent(layer.gradient.spread)]
        cells += map(_number, (layer.gradient_gain, layer.output.rms, layer.output.kurtosis))
        if scores := layer.scores:
            effective = _percent(scores.effective_tokens / scores.num_tokens)
            cells += [scores.num_tokens, effective, scores.num_dead]
        rows.append(cells)
    headings = ["block", "layer", "gradient norm", "spread", "gain", "output RMS", "kurtosis"]
    if model.score_function:
        headings += ["tokens", "effective", "dead"]
    yield _table("layers", headings, rows)
    yield from readings_parts(model.readings)
    if model.score_function:
        yield Paragraph("Use by generation (mean over layers)", "heading")
        yield _generation_table(model)
        what = f"contribution below {DEAD_BELOW:.0%} of the layer's output on the whole text"
        yield Paragraph(f"{model.num_dead or 'no'} dead parameter tokens ({what})")


def _generation_table(model: InspectedCheckpoint) -> Table:
    uses = [(use, layer.scores) for layer in model.layers if layer.scores for use in layer.scores.generations]
    uses.sort(key=lambda pair: pair[0].generation)
    rows = []
    for generation, group in groupby(uses, key=lambda pair: pair[0].generation):
        pairs = list(group)
        even = sum(use.num_tokens / scores.num_tokens for use, scores in pairs)
        mass = sum(use.score_mass for use, _ in pairs)
        contribution = sum(use.contribution for use, _ in pairs)
        shares = (_percent(total / len(model.layers)) for total in (even, mass, contribution))
        dead = sum(len(use.dead) for use, _ in pairs)
        ramp = min(use.key_ramp for use, _ in pairs)
        rows.append((str(generation), str(sum(use.num_tokens for use, _ in pairs)), *shares, str(dead), f"{ramp:g}"))
    headings = ("generation", "tokens", "share of tokens", "score mass", "contribution", "dead", "key ramp")
    return _table("generations", headings, rows)


def _mean(model: InspectedCheckpoint, name: str, quantity: Callable[[Layer], float | None]) -> float | None:
    values = [value for layer in model.layers if layer.name == name and (value := quantity(layer)) is not None]
    return sum(values) / len(values) if values else None


def inspection_png(document: InspectDocument) -> bytes:
    """Gradients and activations by depth, where every dot is a layer in the order of the forward pass, and the loss by
    parameter tokens read, if that was measured."""
    from matplotlib.figure import Figure

    num_panels = len(QUANTITIES) + 2 * any(model.readings for model in document.models)
    figure = Figure(figsize=(5.0 * num_panels, 5.0), dpi=150, layout="constrained")
    panels = figure.subplots(1, num_panels)
    for model in document.models if num_panels > len(QUANTITIES) else ():
        for kind in (None, *(PATTENTIONS if len(document.models) == 1 else ())):
            chosen = (r for r in model.readings if r is model.readings[0] or (r.kind == kind and r.layer is None))
            line = sorted((r.share, r.loss) for r in chosen)
            panels[-2].plot(*zip(*line, strict=True), "o:" if kind else "o-", markersize=4, label=kind or "all")
        panels[-2].set(title="loss (by kind: all others whole)", xlabel="share of parameter tokens read", xscale="log")
        for amount in dict.fromkeys(r.amount for r in model.readings if r.layer is not None):
            losses = [r.loss for r in model.readings if r.layer is not None and r.amount == amount]
            places = [(place + 0.5) / len(losses) for place in range(len(losses))]
            panels[-1].plot(places, losses, "o-", markersize=4, label=f"{model.name}: {amount}")
        panels[-1].set(title="loss (one layer reads that much)", xlabel="depth (share of the layers)")
        for panel in panels[-2:]:
            panel.legend(fontsize=8, frameon=False)
    for axes, (title, quantity) in zip(panels, QUANTITIES.items(), strict=False):
        for number, model in enumerate(document.models, 1):
            label = visible(f"{number}: {model.name}, {model.scores_word}").replace("$", r"\$")
            values = [quantity(layer) for layer in model.layers]
            places = [(place + 0.5) / len(values) for place in range(len(values))]
            shown = [(place, value) for place, value in zip(places, values, strict=True) if value and value > 0]
            axes.plot([place for place, _ in shown], [value for _, value in shown], "o-", markersize=4, label=label)
        axes.set(title=title, xlabel="depth (share of the layers)", yscale="log")
        axes.grid(alpha=0.12)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=2, fontsize=8, frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
