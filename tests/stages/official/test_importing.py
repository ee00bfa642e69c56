"""Importing official checkpoints: the reference's logits, all tensors and settings read, one error for each defect."""

import os
import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed.utils import zero_to_fp32

from model.language_model import LanguageModel
from model.tokenformer_config import TokenformerConfig
from stages.checkpoint import load_model
from stages.checkpoint.foreign import open_weights
from stages.checkpoint.lineage import TrainingCost
from stages.checkpoint.manifest import CheckpointError, read_manifest, verify_checkpoint
from stages.checkpoint.pretrained import load_pretrained
from stages.official.importing import import_official
from stages.official.layout import official_names, read_settings
from tests.pretrained import END_OF_TEXT, byte_tokenizer
from tests.stages.official_checkpoints import (
    EMBEDDING,
    FFN_KEYS,
    official_state,
    published,
    write_official,
    write_settings,
)

FREQUENCIES = "sequential.3.attention.rotary_emb.inv_freq"


def imported(folder: Path, weights: Path, settings: Path, **options) -> LanguageModel:
    """The model of an import to the directory `imported`."""
    import_official(weights, settings, folder / "imported", **options)
    verify_checkpoint(folder / "imported")
    return load_model(folder / "imported")


def refusal(folder: Path, weights: Path, settings: Path, **options) -> str:
    """The one line of a rejected import, which leaves nothing behind."""
    before = set(folder.iterdir())
    with pytest.raises(CheckpointError) as refused:
        import_official(weights, settings, folder / "imported", **options)
    assert set(folder.iterdir()) == before
    assert "\n" not in str(refused.value)
    return str(refused.value)


def assert_holds(model: LanguageModel, state: dict[str, torch.Tensor]) -> None:
    names = official_names(published())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, state[names[name]].float()), name


def test_a_folder_of_two_models_and_a_file_without_named_tensors_are_refused(tmp_path):
    weights, settings = write_official(tmp_path, name="both/pytorch_model.bin")
    write_official(tmp_path, name="both/model.safetensors")
    assert "but has model.safetensors, pytorch_model.bin" in refusal(tmp_path, tmp_path / "both", settings)
    torch.save([torch.ones(2)], weights)
    assert "does not consist of named tensors" in refusal(tmp_path, weights, settings)


@pytest.mark.parametrize("name", ["tiny", "tiny_gelu_l2", "tiny_softmax"])
def test_an_imported_model_gives_the_reference_logits_positions_included(shared, tmp_path, name):
    """Within 1e-5 absolute in float32, for logits of up to 12, and within 1e-6 in float64."""
    folder = shared / "vectors" / "tokenformer"
    expected = torch.load(folder / f"{name}.expected.pt", weights_only=True)
    import_official(folder / f"{name}.bin", folder / f"{name}.yml", tmp_path / "imported")
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-6)):
        model = load_model(tmp_path / "imported", dtype=dtype)
        assert model.config.rotary_fraction == 0.25
        with torch.no_grad():
            logits = model(expected["input_ids"])
        torch.testing.assert_close(logits.float(), expected["logits"], rtol=0, atol=tolerance)


def test_an_import_is_a_complete_checkpoint_of_unknown_cost_without_moments(tmp_path):
    model = imported(tmp_path, *write_official(tmp_path))
    assert model.config == published()
    manifest = read_manifest(tmp_path / "imported")
    assert (manifest.group_steps, manifest.text.context_length) == ({}, 16)
    [entry] = manifest.lineage.history
    assert (entry.operation, entry.cost) == ("import", TrainingCost(complete=False))


@pytest.mark.parametrize(("dtype", "legacy"), [(torch.float16, False), (torch.bfloat16, False), (torch.float32, True)])
def test_half_precision_and_files_without_a_zip_archive_are_imported_exactly(tmp_path, dtype, legacy):
    state = {name: tensor.to(dtype) for name, tensor in official_state().items()}
    weights, settings = tmp_path / "model.bin", write_settings(tmp_path)
    with_frequencies = state | {FREQUENCIES: torch.ones(2)}  # some save those; they are left out
    torch.save(with_frequencies, weights, _use_new_zipfile_serialization=not legacy)
    assert_holds(imported(tmp_path, weights, settings), state)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({FFN_KEYS: None}, f"{FFN_KEYS} is missing"),
        ({EMBEDDING: None}, f"is not an official checkpoint: it has no {EMBEDDING}"),
        ({"sequential.9.x": torch.zeros(1)}, "has sequential.9.x, which the model in"),
        ({FFN_KEYS: torch.zeros(9, 32)}, f"{FFN_KEYS} has shape [9, 32], not [8, 32]"),
        ({FFN_KEYS: torch.zeros(8, 32, dtype=torch.float64)}, "tensor of float32, float16, bfloat16, not of float64"),
        ({FFN_KEYS: torch.full((8, 32), torch.nan)}, f"{FFN_KEYS} has 256 values, NaN or infinite"),
        ({FFN_KEYS: torch.zeros(8, 32).to_sparse()}, f"{FFN_KEYS} must be an ordinary tensor"),
    ],
    ids=str,
)
def test_a_tensor_that_does_not_belong_is_named_and_nothing_is_left_behind(tmp_path, changes, message):
    assert message in refusal(tmp_path, *write_official(tmp_path, changes))


@pytest.mark.slow
@pytest.mark.parametrize(("safe_serialization", "max_shard_size"), [(False, "5GB"), (False, 20_000), (True, 20_000)])
def test_what_zero_to_fp32_of_deepspeed_writes_is_imported(tmp_path, monkeypatch, safe_serialization, max_shard_size):
    """Also beside DeepSpeed's own shards, as after `zero_to_fp32.py . .`."""
    merged = tmp_path / "merged"
    (merged / "global_step20").mkdir(parents=True)
    (merged / "global_step20/mp_rank_00_model_states.pt").touch()
    monkeypatch.setattr(zero_to_fp32, "get_fp32_state_dict_from_zero_checkpoint", lambda *_, **__: official_state())
    zero_to_fp32.convert_zero_checkpoint_to_fp32_state_dict(
        "", merged, max_shard_size=max_shard_size, safe_serialization=safe_serialization
    )
    num_files = len(list(merged.iterdir())) - 1
    assert num_files == (1 if max_shard_size == "5GB" else 3)  # two shards and their index
    assert_holds(imported(tmp_path, merged, write_settings(tmp_path)), official_state())


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ('{"weight_map": {"a": "../three.safetensors"}}', "shards/three.safetensors cannot be opened"),
        ('{"weight_map": ["a"]}', "it has no weight_map"),
    ],
)
def test_an_index_that_disagrees_with_its_shards_or_names_none_is_rejected(tmp_path, index, message):
    _, settings = write_official(tmp_path, {FFN_KEYS: None}, name="shards/one.safetensors")
    (tmp_path / "shards/model.safetensors.index.json").write_text(index)
    assert message in refusal(tmp_path, tmp_path / "shards", tmp_path / settings.name)


@pytest.mark.parametrize("name", ["model.bin", "model.safetensors"])
def test_a_truncated_file_and_a_git_lfs_pointer_are_one_clear_error(tmp_path, name):
    weights, settings = write_official(tmp_path, name=name)
    for size in (4000, 100, 0):
        os.truncate(weights, size)
        assert str(weights) in refusal(tmp_path, weights, settings)
    weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 600\n")
    assert "it is a Git-LFS pointer" in refusal(tmp_path, weights, settings)


@pytest.mark.parametrize("legacy", [False, True])
def test_flipped_bytes_in_a_pickle_are_one_clear_error_or_still_a_state_dict(tmp_path, legacy):
    weights = tmp_path / "model.bin"
    torch.save(official_state(), weights, _use_new_zipfile_serialization=not legacy)
    whole, chance, refused = weights.read_bytes(), random.Random(5), list[str]()
    start = whole.index(EMBEDDING.encode()) - 100
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(300):
            damaged = bytearray(whole)
            damaged[start + chance.randrange(1000)] ^= chance.randrange(1, 256)
            weights.write_bytes(damaged)
            try:
                open_weights(weights)
            except CheckpointError as error:
                refused.append(str(error))
    assert len(refused) > 100
    assert all(message.startswith(str(weights)) and "\n" not in message for message in refused)


class Bomb:
    """Unpickling it creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("legacy", [False, True])
def test_a_pickle_that_would_run_code_is_rejected_with_a_one_line_message(tmp_path, legacy):
    weights, settings = write_official(tmp_path)
    torch.save({EMBEDDING: Bomb(tmp_path / "exploded")}, weights, _use_new_zipfile_serialization=not legacy)
    assert f"{weights} is not a plain state dict of tensors" in refusal(tmp_path, weights, settings)
    assert not (tmp_path / "exploded").exists()
    torch.load(weights, weights_only=False)  # the pickle does run its code
    assert (tmp_path / "exploded").exists()


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    byte_tokenizer().save(str(path))
    return path


def test_the_tokenizer_is_stored_and_embedding_rows_beyond_its_ids_are_padding(tmp_path, tokenizer):
    imported(tmp_path, *write_official(tmp_path), tokenizer=tokenizer)
    loaded = load_pretrained(tmp_path / "imported")
    assert loaded.tokenizer.get_vocab() == byte_tokenizer().get_vocab()
    assert (loaded.num_token_ids, loaded.manifest.model.vocab_size) == (261, 264)
    assert (loaded.text.end_of_text, loaded.text.end_of_text_id) == (END_OF_TEXT, 0)
    assert loaded.manifest.tokenizer_sha256 == loaded.manifest.files["tokenizer.json"].sha256
    other = import_official(*write_official(tmp_path), tmp_path / "other", tokenizer=tokenizer, end_of_text="!")
    assert (other.text.end_of_text, other.text.end_of_text_id) == ("!", byte_tokenizer().token_to_id("!"))


def test_a_tokenizer_that_does_not_fit_is_one_clear_error(tmp_path, tokenizer):
    small = write_official(tmp_path, {EMBEDDING: torch.zeros(260, 32)})
    message = refusal(tmp_path, *small, tokenizer=tokenizer)
    assert f"{tokenizer} has 261 token ids; the embedding has only 260 rows" in message
    assert "no such token" in refusal(tmp_path, *write_official(tmp_path), tokenizer=tokenizer, end_of_text="<eos>")


def interrupt(done: int, total: int) -> None:
    if done == 5:
        raise KeyboardInterrupt


def model_of(folder, **changes: Any) -> TokenformerConfig:
    return read_settings(write_settings(folder, **changes)).model(264)


def test_settings_that_change_the_function_are_honoured(tmp_path):
    assert model_of(tmp_path) == published()
    other = {"layernorm_epsilon": 1e-3, "rotary_emb_base": 500, "rotary_pct": None, "norm_activation_type": "softmax"}
    config = model_of(tmp_path, **other)
    assert (config.norm_epsilon, config.rotary_base, config.rotary_fraction) == (1e-3, 500, 1.0)
    assert config.score_function == "softmax"
    assert config.blocks[0].query.tau == 4  # the softmax's published tau is n
    assert model_of(tmp_path, pos_emb="none").rotary_width == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_mup": True}, "use_mup is True: Input should be False"),
        ({"pos_emb": "alibi"}, "pos_emb is 'alibi': Input should be 'rotary' or 'none'"),
        ({"norm": None}, "norm: Field required"),
        ({"no-weight-tying": True}, "no_weight_tying is True"),
        ({"model_parallel_size": 2}, "model_parallel_size is 2"),
        ({"attention_config": [[["tokenformer", "global"], 1]]}, "attention_config has 'global' layers"),
        ({"sliding_window_width": 15}, "sliding_window_width is 15; growctl imports only attention to all earlier"),
        ({"sliding_window_width": 16, "seq_length": None}, "sliding_window_width is 16"),
        ({"soft_prompt_tuning": {"enabled": True}}, "soft_prompt_tuning is enabled"),
    ],
)
def test_another_architecture_is_rejected_with_the_setting_and_its_value(tmp_path, changes, message):
    with pytest.raises(CheckpointError) as refused:
        read_settings(write_settings(tmp_path, **changes))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("layers", [[[["tokenformer"], "all"]], ["tokenformer", "tokenformer"]])
def test_a_setting_that_excludes_nothing_is_accepted(tmp_path, layers):
    without = {"sliding_window_width": 16, "soft_prompt_tuning": {"enabled": False}, "gpt_j_residual": True}
    assert model_of(tmp_path, attention_config=layers, **without) == published()


def test_settings_are_read_as_plain_data_without_calls(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.yml").write_text("!!python/object/apply:os.system [touch exploded]")
    with pytest.raises(CheckpointError, match="could not determine a constructor"):
        read_settings(tmp_path / "model.yml")
    assert not (tmp_path / "exploded").exists()
