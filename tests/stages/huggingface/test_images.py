"""Exports of models of images: their logits and their pixels in Transformers, and the code in their model card."""

import importlib
from contextlib import chdir
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from growctl.evaluate.model_card import model_card
from growctl.runs.show import read_facts
from model.config import ImageInput
from model.config_growth import grow_config
from model.decoder_config import decoder_config
from model.shapes import ModelConfig
from model.tokenformer_config import tokenformer_config
from stages.checkpoint.pretrained import load_pretrained
from stages.huggingface.export import export_huggingface
from stages.huggingface.record import HuggingFaceExport
from stages.images.pixels import centre, scaled
from tests.stages.checkpoints import write_checkpoint
from tests.stages.huggingface.test_export import OWN_NORM, SIZES
from tests.stages.huggingface.test_importing import equal, randomized

pytestmark = pytest.mark.slow  # importing Transformers takes most of the time

GREY = ImageInput(size=8, patch=2, channels=1, pooling="mean")
COLOUR = ImageInput(size=12, patch=4)
NAMES = ("cat", "dog", "a fox", "owl", "yak")
SHAPE: dict[str, Any] = SIZES | {"vocab_size": len(NAMES)}
BASES = [tokenformer_config(**SHAPE, image=image, attention_tokens=8) for image in (COLOUR, GREY)]
GROWN = grow_config(BASES[0], attention_tokens=3, ffn_tokens=6, new_layers=1, policy=OWN_NORM)
VIT = grow_config(decoder_config(**SHAPE, image=COLOUR, qkv_bias=False, norm_epsilon=1e-3), ffn_tokens=3, new_layers=1)


def exported(folder: Path, config: ModelConfig, check: bool) -> HuggingFaceExport:
    """The export of a checkpoint without a tokenizer. With `check`, growctl compares it in a process of its own."""
    write_checkpoint(folder / "checkpoint", config, tokenizer_sha256=None, classes=NAMES)
    pretrained = load_pretrained(folder / "checkpoint")
    card = partial(model_card, read_facts(pretrained.directory, pretrained.manifest))
    pretrained = pretrained._replace(model=randomized(pretrained.model, 1))
    return export_huggingface(pretrained, folder / "out", card=card, check=check)


@pytest.mark.parametrize("config", [GROWN, BASES[1], VIT], ids=["grown", "mean of grey patches", "vit"])
def test_transformers_computes_the_logits_of_a_model_of_images_and_reads_images_as_growctl_does(tmp_path, config):
    from transformers import AutoImageProcessor

    found = exported(tmp_path, config, check=True)
    assert not found.check.not_checked
    assert not {"tokenizer.json", "generation_config.json"} & found.files.keys()
    code = "transformers.models.vit.modeling_vit" if config is VIT else "stages.huggingface.code.modeling_tokenformer"
    theirs = getattr(importlib.import_module(code), found.architecture).from_pretrained(tmp_path / "out").double()
    image, ours = config.image, randomized(load_pretrained(tmp_path / "checkpoint").model, 1).double()
    random = np.random.default_rng(0)
    pixels_BCSS = torch.from_numpy(random.normal(size=(3, image.channels, image.size, image.size)))
    with torch.no_grad():
        equal(ours(pixels_BCSS), theirs(pixels_BCSS).logits)
    assert tuple(theirs.config.id2label.values()) == NAMES == tuple(theirs.config.label2id)
    processor = AutoImageProcessor.from_pretrained(tmp_path / "out", backend="pil")
    for width, height in ((image.size, image.size), (image.size, 31), (23, 57), (5, 4)):
        values = random.integers(0, 256, (height, width, 3), np.uint8)
        picture = Image.fromarray(values).convert("RGB" if image.channels == 3 else "L")
        read = processor(picture, return_tensors="np")["pixel_values"][0]
        np.testing.assert_allclose(read, scaled(centre(picture, image.size)), rtol=0, atol=1e-6)


def test_the_code_in_the_model_card_names_the_class_of_an_image(tmp_path, capsys):
    exported(tmp_path, VIT, check=False)
    Image.new("RGBA", (30, 20), (200, 10, 90, 40)).save(tmp_path / "image.png")
    code = (tmp_path / "out/README.md").read_text().partition("```python\n")[2].partition("```")[0]
    with chdir(tmp_path):
        exec(code, {})
    assert capsys.readouterr().out.strip() in NAMES
