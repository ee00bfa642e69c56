"""growctl/ladder/conditions.py: what the ledger records of a dataset, so that runs on different ones are told apart."""

from pathlib import Path
from typing import Any

import pytest

from growctl.ladder.conditions import data_conditions, model_shape
from model.policy import grow_config
from stages.corpus.prepared import Ingredient, write_mixture
from stages.data.dataset import dataset_manifest_bytes, read_dataset_manifest
from tests.model.growths import small_config, small_decoder
from tests.stages.data.test_dataset import write_dataset


@pytest.fixture
def datasets(tmp_path: Path) -> dict[str, Path]:
    found = {name: write_dataset(tmp_path / name, [500], [100]) for name in ("books", "code")}
    for number, directory in enumerate(found.values(), 1):
        manifest = read_dataset_manifest(directory)
        hashed = {"text_hash": f"{number:032x}"}
        splits = {name: split.model_copy(update=hashed) for name, split in manifest.splits.items()}
        (directory / "manifest.json").write_bytes(
            dataset_manifest_bytes(manifest.model_copy(update={"splits": splits}))
        )
    return found


def test_mixtures_have_the_same_validation_text_only_if_they_weight_the_same_texts_alike(
    datasets: dict[str, Path], tmp_path: Path
) -> None:
    def conditions(limit: float | None = None, **weights: float) -> dict[str, object]:
        sources = [Ingredient(name, datasets[name], weight, limit) for name, weight in weights.items()]
        return data_conditions(read_dataset_manifest(write_mixture(sources, tmp_path)))

    base, alone = conditions(books=3, code=1), data_conditions(read_dataset_manifest(datasets["books"]))
    assert base["data.mixture"] == {"books": 3.0, "code": 1.0}
    assert "data.mixture" not in alone
    assert conditions(code=0.2, books=0.6)["data.validation_text"] == base["data.validation_text"]
    hashes = [each["data.validation_text"] for each in (base, conditions(books=1, code=1), conditions(books=1), alone)]
    assert len(set(hashes)) == len(hashes)
    assert "data.epochs_at_most" not in base
    assert conditions(2.0, code=1)["data.epochs_at_most"] == {"code": 2.0}, "how often a source may be read"


def test_the_shape_of_a_stage_holds_every_size_that_a_growth_may_change() -> None:
    decoder = small_decoder(num_layers=2, num_heads=4, num_kv_heads=2, hidden_size=16, rotary_fraction=0.5)
    of_decoders: list[dict[str, Any]] = [{"ffn_tokens": 4}, {"heads": 2}, {"new_layers": 1}, {"widen": 2}]
    of_tokenformers: list[dict[str, Any]] = [
        {"attention_tokens": 4, "ffn_tokens": 0},
        {"ffn_tokens": 4},
        {"new_layers": 1},
    ]
    for model, growths in ((decoder, of_decoders), (small_config(), of_tokenformers)):
        for growth in growths:
            assert model_shape(grow_config(model, **growth)) != model_shape(model)
