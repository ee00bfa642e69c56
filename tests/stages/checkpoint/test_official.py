"""Official checkpoints: layout, names, and logits that match the reference, positions included."""

import pytest
import torch

from stages.checkpoint.manifest import CheckpointError
from stages.checkpoint.official import load_official, official_config

SCORE_FUNCTIONS = {"tiny": "l2_norm_gelu", "tiny_gelu_l2": "gelu_l2_norm", "tiny_softmax": "softmax"}


@pytest.mark.parametrize("name", SCORE_FUNCTIONS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-6)])
def test_official_weights_give_the_reference_logits(shared, name, dtype, tolerance):
    """Within the absolute `tolerance`; in float32 also within the same relative one, for logits of up to 20."""
    folder = shared / "vectors" / "tokenformer"
    expected = torch.load(folder / f"{name}.expected.pt", weights_only=True)
    model = load_official(folder / f"{name}.bin", folder / f"{name}.yml").to(dtype)
    assert model.config.rotary_fraction == 0.25
    with torch.no_grad():
        logits = model(expected["input_ids"])
    relative = tolerance if dtype == torch.float32 else 0
    torch.testing.assert_close(logits.float(), expected["logits"], rtol=relative, atol=tolerance)


@pytest.mark.parametrize("name", SCORE_FUNCTIONS)
def test_the_official_configuration_matches_its_yaml(shared, name):
    config = official_config(shared / "vectors" / "tokenformer" / f"{name}.yml", vocab_size=128)
    assert config.rotary_fraction == 0.25
    assert config.score_function == SCORE_FUNCTIONS[name]
    assert (config.hidden_size, config.num_heads, config.vocab_size) == (64, 4, 128)


def write_checkpoint(folder, change_settings="", drop=None, extra=None):
    settings: dict[str, object] = {"num_layers": 1, "hidden_size": 16, "num_attention_heads": 1, "qkv_slot_num": 3}
    settings |= {"proj_slot_num": 3, "ffn_slot_num": 5, "rotary_pct": 0.25, "norm": "layernorm_nonparam"}
    settings |= {"final_norm": "layernorm"}
    (folder / "m.yml").write_text("".join(f"{k}: {v}\n" for k, v in settings.items()) + change_settings)
    state = {"sequential.0.word_embeddings.weight": torch.zeros(7, 16)}
    sizes = {f"attention.{name}": 3 for name in ("query", "key", "value", "proj")} | {"mlp": 5}
    for layer, tokens in sizes.items():
        for kind in ("key", "value"):
            state[f"sequential.2.{layer}.{kind}_param_tokens"] = torch.zeros(tokens, 16)
    state |= {"sequential.4.norm.weight": torch.ones(16), "sequential.4.norm.bias": torch.zeros(16)}
    state.pop(drop, None)
    torch.save(state | (extra or {}), folder / "m.bin")
    return folder / "m.bin", folder / "m.yml"


def test_a_complete_checkpoint_loads_and_a_missing_or_unknown_tensor_is_named(tmp_path):
    assert load_official(*write_checkpoint(tmp_path)).config.num_layers == 1
    with pytest.raises(CheckpointError, match=r"mlp\.key_param_tokens is missing"):
        load_official(*write_checkpoint(tmp_path, drop="sequential.2.mlp.key_param_tokens"))
    with pytest.raises(CheckpointError, match=r"has sequential\.9\.x"):
        load_official(*write_checkpoint(tmp_path, extra={"sequential.9.x": torch.zeros(1)}))
    with pytest.raises(CheckpointError, match=r"has shape \[8, 16\], not \[5, 16\]"):
        load_official(*write_checkpoint(tmp_path, extra={"sequential.2.mlp.key_param_tokens": torch.zeros(8, 16)}))


def test_an_architecture_other_than_the_published_one_is_rejected(tmp_path):
    with pytest.raises(CheckpointError, match="gpt_j_residual is True; growctl only supports False"):
        load_official(*write_checkpoint(tmp_path, change_settings="gpt_j_residual: true\n"))


class Bomb:
    """Unpickling it creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("legacy", [False, True])
def test_a_pickle_that_would_run_code_is_rejected_with_a_one_line_message(tmp_path, legacy):
    weights, settings = write_checkpoint(tmp_path)
    name = "sequential.0.word_embeddings.weight"
    torch.save({name: Bomb(tmp_path / "exploded")}, weights, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(CheckpointError) as refused:
        load_official(weights, settings)
    assert str(refused.value) == (
        f"{weights} is not a plain state dict of tensors; growctl loads nothing else, because it could run code"
    )
    assert not (tmp_path / "exploded").exists()
    torch.load(weights, weights_only=False)  # the pickle does run its code
    assert (tmp_path / "exploded").exists()


@pytest.mark.parametrize("content", [[torch.zeros(1)], {"a": 1}, {"a": torch.zeros(1), 5: "b"}])
def test_a_file_without_a_dictionary_of_tensors_is_rejected(tmp_path, content):
    weights, settings = write_checkpoint(tmp_path)
    torch.save(content, weights)
    with pytest.raises(CheckpointError, match="does not consist of named tensors"):
        load_official(weights, settings)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("!!python/object/apply:os.system [touch exploded]", "could not determine a constructor"),
        ("- 1", "has no keys"),
        ("a: [", "while parsing"),
        ("rotary_pct: ${oc.env:HOME}", None),
    ],
)
def test_settings_are_read_as_plain_data_without_calls_or_lookups(tmp_path, monkeypatch, text, problem):
    monkeypatch.chdir(tmp_path)
    weights, settings = write_checkpoint(tmp_path)
    settings.write_text(text if problem else settings.read_text().replace("rotary_pct: 0.25", text))
    with pytest.raises(CheckpointError, match=problem or "oc.env:HOME"):  # as written: not the home directory
        load_official(weights, settings)
    assert not (tmp_path / "exploded").exists()
