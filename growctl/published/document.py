"""Published figures, as values for scripts."""

from dataclasses import dataclass

from growctl.published.overlays import Published


@dataclass(frozen=True)
class PublishedModel:
    """A published model."""

    model: str
    series: str
    perplexity: float | None
    tokens: float | None
    """Data tokens of its own training, without those of the model it was grown from."""
    flops: float | None
    """Training FLOPs from the first model on; None if they are neither published nor follow from shape and tokens."""
    flops_computed: bool
    """Whether growctl computed them from the shape and the tokens."""
    grown_from: str | None


@dataclass(frozen=True)
class PublishedEntry:
    """Figures that others published and growctl did not measure."""

    title: str
    source: str
    data: str
    models: tuple[PublishedModel, ...]
    notes: tuple[str, ...]


def published_entry(overlay: Published) -> PublishedEntry:
    """The entry of an overlay."""
    models = []
    for row in overlay.rows:
        flops = overlay.cost(row, "flops")
        computed = flops is not None and overlay.computes_flops(row)
        figures = (overlay.perplexity(row), overlay.tokens(row), flops, computed)
        models.append(PublishedModel(row.model, row.series, *figures, row.grown_from))
    return PublishedEntry(overlay.title, overlay.source, overlay.data, tuple(models), tuple(overlay.notes))
