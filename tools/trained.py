"""Makes the tables of docs/ that show what training ended at, from benchmarks/results/."""

import json
import math
import statistics
from collections.abc import Callable
from typing import Any, get_args

from growctl.text.formatting import short_count
from stages.counted import counted
from tools.tables import REPOSITORY, Rows

STUDENTS_T = {3: 4.303, 4: 3.182, 5: 2.776}
"""For 95 %, by the number of values."""

GROWTHS = {
    "append": "depth, appended",
    "interleave": "depth, interleaved",
    "copy-stack": "depth, copied",
    "tokens": "tokens",
    "both": "depth and tokens",
}


def _depth_and_tokens(found: Any) -> Rows:
    """The ways to spend 20 data tokens per parameter that have three seeds or more, from the lowest loss up."""
    ranked = []
    for row in found["rows"]:
        losses = [outcome["loss"] for outcome in row["by_seed"].values()]
        if (row["arm"], row["budget"]) == (20, 1) and len(losses) >= 3:
            ranked.append((statistics.mean(losses), losses, row))
    for mean, losses, row in sorted(ranked, key=lambda each: each[0]):
        jump = max((jump for outcome in row["by_seed"].values() for jump in outcome["jumps"]), key=abs, default=None)
        yield {
            "run": _spent(row),
            "tokens": f"{row['tokens'] / 1e6:.1f}M",
            "peak": f"{1e3 * row['peak']:g}e-3",
            "jump, nats": "-" if jump is None else f"{jump:+.3f}" if abs(jump) > 1e-5 else "0",
            "mean loss": f"{mean:.4f}",
            "by seed": ", ".join(f"{loss:.4f}" for loss in losses),
        }


def _spent(row: Any) -> str:
    """How a run spent its budget, in words."""
    sizes = [f"{counted(size['layers'], 'layer')} x {size['attention_tokens']}" for size in row["sizes"]]
    if row["kind"] == "scratch":
        return f"**{sizes[0]}, from scratch**"
    stages = [f"{size} to {100 * share:.0f} %" for size, share in zip(sizes, row["until"], strict=False)]
    return f"{GROWTHS[row['kind']]}: {', '.join(stages)}, then {sizes[-1]}"


RECIPES = {
    "tokenformer-scratch": "Tokenformer, 262k from scratch",
    "tokenformer-tokens": "Tokenformer, growing in tokens",
    "tokenformer-depth": "Tokenformer, 1 -> 2 -> 3 layers",
    "decoder-scratch": "Decoder, 266k from scratch",
    "decoder-depth": "Decoder, 1 -> 2 -> 4 layers",
}
"""What benchmarks/optimizers.py trains."""


def _optimizers(found: Any) -> Rows:
    rows = {(row["recipe"], row["optimizer"]): row for row in found["rows"]}
    for recipe, words in RECIPES.items():
        cells = {}
        for optimizer, name in (("adamw", "AdamW"), ("muon", "Muon")):
            row, scratch = (rows[of, optimizer] for of in (recipe, f"{recipe.split('-')[0]}-scratch"))
            cells[f"{name}: loss, best peak"] = f"{_losses(row).split()[0]}, {row['peak']:g}"
            cells[f"{name}: minus from scratch"] = "" if row is scratch else _difference(row, scratch)
        yield {"what is trained": words} | cells


ENDS = {"tokens": "100-scratch-3-layers", "depth": "100-scratch-4-layers"}
"""What the rows of benchmarks/muon_growth.py with five times the FLOPs grow to, from scratch."""


def _muon_growth(found: Any) -> Rows:
    groups: dict[tuple[int, str], list[Any]] = {}
    for row in found["rows"]:
        if not row["name"].startswith("recipe-"):
            groups.setdefault((row["tokens_per_parameter"], row["name"].split("-")[0]), []).append(row)
    every = {f"{row['tokens_per_parameter']}-{row['name']}": row for row in found["rows"]}
    for (ratio, kind), rows in groups.items():
        label = kind if ratio == 20 else f"{ratio // 20}x FLOPs: {kind}"
        named = {row["name"].removeprefix(kind).replace("-", " ").strip(): row for row in rows}
        yield from _compared("what is trained", label, named, named.get("") or every.get(ENDS.get(kind, "")))


PRESETS = {
    "deep-vanilla-grow": ("Deep Vanilla Grow", "2 -> 3 layers at 50 %, inside a linear decay"),
    "one-layer": ("zero/one-layer", "1 -> 3 layers at 80 %"),
    "g-stack": ("G_stack", "1 -> 4 layers at 3 %, a cosine for each stage"),
    "sparkling": ("SPARKLING", "164k -> 262k in parameter tokens at 50 %"),
    "official": ("Tokenformer", "the same, a cosine for each stage"),
}
"""By the name of the growth block: the method, and what benchmarks/muon_growth.py trains with it."""


def _recipes(found: Any) -> Rows:
    """The multipliers that papers claim for their recipes, beside what the recipes end at here."""
    published = json.loads((REPOSITORY / "benchmarks/results/published_multipliers.json").read_text())["rows"]
    rows = {row["name"]: row for row in found["rows"] if row["tokens_per_parameter"] == 20}
    for name, (method, trained) in PRESETS.items():
        claims = [row for row in published if row["method"] == method]
        values = sorted({claim["multiplier"] for claim in claims})
        if row := rows.get(f"recipe-{name}"):
            yield {
                "recipe": f"`{name}`",
                "published, against": f"{' to '.join(f'{v}x' for v in values[:: max(len(values) - 1, 1)])}, "
                f"{claims[0]['opponent']}",
                "trained here": trained,
                "loss": _losses(row, rows["scratch-3-layers"]),
                "minus 3 layers from scratch": _difference(row, rows["scratch-3-layers"]),
            }


def _blocks(found: Any) -> Rows:
    """The options of a block, by family, from the lowest loss up after the default."""
    rows = [row for row in found["rows"] if row["name"].startswith("block-")]
    for family in dict.fromkeys(row["family"] for row in rows):
        default, *others = (row for row in rows if row["family"] == family)
        others.sort(key=lambda row: _mean_gap(row, default))
        named = {"": default} | {row["option"].replace("-", " "): row for row in others}
        yield from _compared("block", family, named, default)


def _compared(heading: str, label: str, rows: dict[str, Any], usual: Any) -> Rows:
    """Rows by what they change, with their differences from `usual`, or their losses where it is None. Those of one
    seed, which are a look, share a row."""
    looks = {name: row for name, row in rows.items() if len(row["by_seed"]) < 2 and row is not usual}
    for name in (name for name in rows if name not in looks):
        difference = "" if usual in (None, rows[name]) else _difference(rows[name], usual)
        yield {
            heading: f"{label} {name}".strip(),
            "loss (by seed)": _losses(rows[name], usual),
            "difference": difference,
        }
    cells = ", ".join(f"{name} {_difference(row, usual) if usual else _losses(row)}" for name, row in looks.items())
    if cells:
        column = {"loss (by seed)": "", "difference": cells} if usual else {"loss (by seed)": cells, "difference": ""}
        yield {heading: f"{label}, one seed each"} | column


def _grown_decoders(found: Any) -> Rows:
    ways = {row["way"]: row for row in found["rows"] if row["name"].startswith("grown-")}
    for way, row in ways.items():
        yield {
            "what follows the base": way,
            "parameters": short_count(next(iter(row["by_seed"].values()))["num_parameters"]),
            "final loss (by seed)": _losses(row, ways["ungrown"]),
            "minus `ungrown`": "" if way == "ungrown" else _difference(row, ways["ungrown"]),
        }


POLICIES = (
    *("matched, ramp 2 %", "matched, ramp 20 %", "matched, recompute", "official", "zero-key, anneal 30 %"),
    *("paper-appendix (zero-key, frozen)", "copy, recompute", "matched, ramp 2 %, old frozen"),
)
"""Those of benchmarks/growth_policies.py that the page shows."""


def _policies(found: Any) -> Rows:
    for row in (row for row in found["rows"] if row["policy"] in POLICIES):
        jump = f"{row['jump']:+.3f}" if abs(row["jump"]) > 1e-5 else "0"
        yield {"policy": row["policy"], "jump, nats": jump, "final loss": f"{row['loss']:.3f}"}


def _scores(found: Any) -> Rows:
    rows = {row["name"].replace("-", "_"): row for row in found["rows"]}
    yield from _compared("score function", "", rows, rows["l2_norm_gelu"])


ROUTED = {
    "grown": "164k grown to 262k, all read",
    "grown-large": "164k grown to 557k, all read",
    "grown-routed": "164k grown to 557k, read as 262k",
    "scratch": "262k from scratch, all read",
    "scratch-large": "557k from scratch, all read",
    "scratch-routed": "557k from scratch, read as 262k",
}
WINDOWS = {"context-256": "all 256 tokens", "context-256-window-64": "64 tokens in two layers of three"}
"""What benchmarks/routed.py trains."""


def _routed(found: Any, words: dict[str, str]) -> Rows:
    rows = {row["name"]: row for row in found["rows"]}
    usual, *_ = words
    for name, what in words.items():
        if name in rows:
            difference = "" if name == usual else _difference(rows[name], rows[usual])
            yield {"model": what, "loss (by seed)": _losses(rows[name], rows[usual]), "minus the first": difference}


def _losses(row: Any, usual: Any = None) -> str:
    """The mean of the final losses and, of several, each of them, unless an interval of their differences from those of
    `usual` stands beside them."""
    losses = [outcome["loss"] for outcome in row["by_seed"].values()]
    mean = f"{statistics.mean(losses):.3f}" if losses else "-"
    if len(losses) < 2 or (usual not in (None, row) and len(_gaps(row, usual)) > 2):
        return mean
    return f"{mean} ({', '.join(f'{loss:.3f}' for loss in losses)})"


def _gaps(row: Any, usual: Any) -> list[float]:
    """How much higher a row ends than another one, for each seed that both have."""
    both = row["by_seed"].keys() & usual["by_seed"].keys()
    return [row["by_seed"][seed]["loss"] - usual["by_seed"][seed]["loss"] for seed in sorted(both)]


def _mean_gap(row: Any, usual: Any) -> float:
    return statistics.mean(_gaps(row, usual) or [math.inf])


def _difference(row: Any, usual: Any) -> str:
    """The mean of the gaps; of three or more, with its 95% interval."""
    gaps = _gaps(row, usual)
    if len(gaps) < 3:
        return f"{statistics.mean(gaps):+.3f}" if gaps else "-"
    half = STUDENTS_T[len(gaps)] * statistics.stdev(gaps) / math.sqrt(len(gaps))
    mean = statistics.mean(gaps)
    return _interval(mean, [mean - half, mean + half])


HAVE = {
    "nothing": "nothing yet",
    "family": "nothing yet, and want several sizes",
    "trained": "a trained model (the quickstart's)",
    "trained-20": "a model trained on 20 tokens a parameter",
    "trained-100": "one trained on 100",
    "trained-500": "one trained on 500",
}


def _answers(found: Any) -> Rows:
    """The opponent that decides each question, and for a trained model the larger one from scratch too."""
    by_question: dict[str, list[Any]] = {}
    for row in found["rows"]:
        by_question.setdefault(row["question"], []).append(row)
    for question, (first, *others) in by_question.items():
        prices = [row for row in (first, *others) if "price_ratio" in row]
        for row in prices or [first, *(row for row in others if "from scratch" in row["opponent"])][:2]:
            wall = f"; wall-clock {row['saves_wall']}" if row.get("wall_multiplier") else ""
            yield {
                "you have": HAVE[question],
                "growing against": row["opponent"],
                "saves": f"{row['saves'] or '-'}{wall}",
                "loss, nats": _interval(row.get("loss_difference"), row.get("loss_interval")),
                "outcome": row["outcome"],
            }


def _interval(value: float | None, ends: list[float] | None) -> str:
    if value is None:
        return "-"
    return f"{value:+.3f}" + (f" ({ends[0]:+.3f} to {ends[1]:+.3f})" if ends else "")


def _law(found: Any) -> Rows:
    """What docs/law.md says decides."""
    from scipy.stats import binomtest  # slow

    from growctl.law.formula import Advice, Law

    law = Law.model_validate_json(json.dumps(found))
    error, most = law.tested or (math.nan, math.nan)
    pairs = [
        (each.predicted_difference, each.measured_difference.estimate)
        for each in law.held_out
        if each.measured_difference and each.predicted_difference is not None
    ]
    misses = [predicted - measured for predicted, measured in pairs]
    right, wrong, undecided = ([each.advice for each in law.held_out].count(word) for word in get_args(Advice))
    share = binomtest(right, right + wrong).proportion_ci(method="exact")
    found = {
        f"median error of {len(law.held_out)} means": f"{error:.3f} nats (goal: at most {most:.3f})",
        f"predicted minus measured difference, {len(pairs)} ladders": (
            f"median size {statistics.median(map(abs, misses)):.3f} nats, mean {statistics.mean(misses):+.3f}"
        ),
        "advice": f"{right} right, {wrong} wrong, {undecided} undecided; right: {share.low:.0%} to {share.high:.0%}",
        "measured: ladder minus the best size from scratch": (
            f"{min(measured for _, measured in pairs):+.3f} to {max(measured for _, measured in pairs):+.3f} nats"
        ),
    }
    yield from ({"held out": what, "result": value} for what, value in found.items())


TABLES: dict[str, tuple[str, Callable[[Any], Rows]]] = {
    "scores": ("score_functions", _scores),
    "policies": ("growth_policies", _policies),
    "depth-and-tokens": ("growth_axes", _depth_and_tokens),
    "optimizers": ("optimizers", _optimizers),
    "muon-growth": ("muon_growth", _muon_growth),
    "recipes": ("muon_growth", _recipes),
    "blocks": ("decoders", _blocks),
    "grown-decoders": ("decoders", _grown_decoders),
    "answers": ("three_questions", _answers),
    "routed": ("routed", lambda found: _routed(found, ROUTED)),
    "law": ("law", _law),
    "windows": ("routed", lambda found: _routed(found, WINDOWS)),
}
"""The results file and the rows of every table, by the name of its marks."""
