"""What a model of images has in place of token ids: the embedding of patches, pooling and soft targets.

Shapes: B batch, C channels, S size of an image, G patches along a side of it, P side of a patch, T sequence (the class
token, if there is one, then the patches row by row), D model width, K classes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import ImageInput
from model.errors import UserError


class PatchEmbedding(nn.Module):
    """A linear layer over each patch, and learned positions (ViT, arXiv 2010.11929, equation 1)."""

    def __init__(self, image: ImageInput, width: int) -> None:
        super().__init__()
        self.image = image
        self.weight = nn.Parameter(torch.empty(width, image.patch_values))
        """Each row holds one value a channel, then a row and a column of the patch, as a convolution's does."""
        self.bias = nn.Parameter(torch.empty(width))
        self.positions = nn.Parameter(torch.empty(image.sequence_length, width))
        if image.pooling == "class_token":
            self.class_token = nn.Parameter(torch.empty(width))

    def forward(self, pixels_BCSS: Tensor) -> Tensor:
        """(B, C, S, S) in any float dtype in, (B, T, D) in the parameters' dtype out."""
        image, expected = self.image, (self.image.channels, self.image.size, self.image.size)
        if pixels_BCSS.shape[1:] != expected:
            raise UserError(f"images of shape {tuple(pixels_BCSS.shape[1:])}; the model reads images of {expected}")
        patch_BCGPGP = pixels_BCSS.to(self.weight.dtype).unflatten(3, (-1, image.patch)).unflatten(2, (-1, image.patch))
        patch_BTN = patch_BCGPGP.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        x_BTD = F.linear(patch_BTN, self.weight, self.bias)
        if image.pooling == "class_token":
            x_BTD = torch.cat((self.class_token.expand(len(x_BTD), 1, -1), x_BTD), dim=1)
        return x_BTD + self.positions


def pooled(x_BTD: Tensor, image: ImageInput) -> Tensor:
    """What the head reads of an image: (B, D)."""
    return x_BTD[:, 0] if image.pooling == "class_token" else x_BTD.mean(dim=1)


def target_cross_entropy(logits_BK: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy in nats, at least float32. Targets are classes, (B,) int64, or probabilities, (B, K)."""
    dtype = torch.promote_types(logits_BK.dtype, torch.float32)
    return F.cross_entropy(logits_BK.to(dtype), targets.to(dtype) if targets.is_floating_point() else targets)


def class_scores(logits_BK: Tensor, class_B: Tensor) -> tuple[Tensor, Tensor]:
    """The cross-entropy of each image in nats, float64, and how many classes come before the right one: both (B,).

    Of equal logits, as bf16 often gives them, the first class comes first. Without finite logits, all come before it.
    """
    logits_BK, right_B1 = logits_BK.double(), class_B[:, None]
    logit_B1 = logits_BK.gather(1, right_B1)
    is_earlier_BK = torch.arange(logits_BK.shape[1], device=class_B.device) < right_B1
    ahead_B = (~(logits_BK <= logit_B1) | (logits_BK == logit_B1) & is_earlier_BK).sum(dim=1)
    return F.cross_entropy(logits_BK, class_B, reduction="none"), ahead_B
