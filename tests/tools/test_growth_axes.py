"""The table of docs/growing.md about depth and tokens."""

import json

from tools.growth_axes import axes_table

MACHINE = {"cpu": "a CPU", "cores": 2, "torch": "2.13.0", "python": "3.11", "system": "Linux"}
ONE, FULL = ({"layers": layers, "attention_tokens": 8, "ffn_tokens": 32} for layers in (1, 4))


def row(kind, sizes, losses, until=(), budget=1.0, jumps=()):
    by_seed = {str(seed): {"loss": loss, "flops": 100.0, "jumps": jumps} for seed, loss in enumerate(losses)}
    name = f"{kind}-{len(sizes)}-{budget}"
    common = {"arm": 20, "name": name, "kind": kind, "sizes": sizes, "until": until, "budget": budget}
    return common | {"tokens": 2_700_000, "peak": 4e-3, "tried": {"0.004": losses[0]}, "by_seed": by_seed}


def test_the_table_lists_the_rows_with_several_seeds_from_the_best_to_the_worst(tmp_path):
    rows = [
        row("scratch", [FULL], [3.0, 3.2, 3.1]),
        row("scratch", [FULL], [2.8, 3.0, 2.9], budget=2.0),
        row("scratch", [ONE], [2.1]),
        row("append", [ONE, FULL], [2.9, 3.1, 3.0], until=[0.8], jumps=[0.0]),
        row("copy-stack", [ONE, FULL], [3.5, 3.1, 3.3], until=[0.5], jumps=[1.25]),
    ]
    document = {"date": "2026-11-23", "machine": MACHINE, "parameters": 1000, "rows": rows}
    (tmp_path / "growth_axes.json").write_text(json.dumps(document))
    lines = axes_table(tmp_path).splitlines()[2:]
    assert [line.split(" | ")[0] for line in lines] == [
        "| depth, appended: 1 layer x 8 to 80 %, then 4 layers x 8",
        "| **4 layers x 8, from scratch**",
        "| depth, copied: 1 layer x 8 to 50 %, then 4 layers x 8",
    ]
    assert lines[0].endswith("| 2.7M | 4e-3 | 0 | 3.0000 | 2.9000, 3.1000, 3.0000 |")
    assert "| +1.250 |" in lines[2]


def test_without_results_the_page_says_so(tmp_path):
    assert axes_table(tmp_path) == "Not yet measured.\n"
