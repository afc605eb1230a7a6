"""The models of the ladder, by name, for any image size and number of classes.

A ResNet is nearly all convolution. `silunet`, `silu_mlp` and `transformer` have many small pointwise operations, each
of which reads and writes its whole tensor unless a compiler fuses it.
"""

import torch
from torch import nn

from ..config import MODELS
from .gpt import GPT, Block, gpt, next_token_loss


def make(model, classes, length=None) -> nn.Module:
    """The model that a RunConfig asks for: by name, or by the reader's own function.

    Args:
        classes: of the data set, or None; for text the words of the vocabulary.
        length: tokens in a sequence of text.

    Raises:
        TypeError: the function does not return a module.
        ValueError: no such name, or the number of classes is not known.
    """
    if not callable(model):
        if classes is None:
            raise ValueError(
                f"how many classes has your data set? Give it an attribute `classes`, or replace {model!r} by a "
                "function that makes your model"
            )
        return build(model, classes, length)
    made = model()
    if not isinstance(made, nn.Module):
        name = getattr(model, "__name__", model)
        raise TypeError(f"{name}() returned {type(made).__name__}, not a torch.nn.Module")
    return made


def loss_of(model):
    """The loss that `model` is trained with where none is given: a function (outputs, labels) -> mean loss."""
    return next_token_loss if isinstance(model, GPT) else nn.functional.cross_entropy


def build(name, classes, length=None) -> nn.Module:
    """A freshly initialised model for images [N, 3, H, W] with `classes` outputs; `gpt` is for tokens [N, `length`].

    `resnet8` and `resnet20` are the small networks for 32×32 images of He et al., "Deep residual learning for image
    recognition" (arXiv:1512.03385, section 4.2); `resnet18` and `resnet50` are torchvision's, made for 224×224 images.

    Raises:
        ValueError: there is no such model.
    """
    if name not in MODELS:
        there = ", ".join(MODELS)
        raise ValueError(f"no model called {name!r}; there are {there}, or pass a function that makes yours")
    if name == "gpt":
        return gpt(vocabulary=classes, **({"length": length} if length else {}))
    small = {"silunet": SiLUNet, "silu_mlp": SiLUMLP, "transformer": Transformer}
    if name in small:
        return small[name](classes)
    if name in ("resnet8", "resnet20"):
        return SmallResNet(1 if name == "resnet8" else 3, classes)
    import torchvision.models

    return getattr(torchvision.models, name)(num_classes=classes)


def plain_convnet() -> nn.Module:
    """A network of 2.4 million weights (9.6 MB of gradients) for images of 32×32: little computing, much to send."""
    parts, channels = [], 3
    for width in (32, 64, 256, 512):
        parts += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        parts.append(nn.MaxPool2d(2))
        channels = width
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(2048, 512), nn.Linear(512, 10))


class SmallResNet(nn.Module):
    """6·blocks + 2 layers in three stages of 16, 32 and 64 channels."""

    def __init__(self, blocks, classes):
        super().__init__()
        stages, channels = [], 16
        for stage, width in enumerate((16, 32, 64)):
            for block in range(blocks):
                stages.append(ResidualBlock(channels, width, stride=2 if stage and not block else 1))
                channels = width
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.stages = nn.Sequential(*stages)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))

    def forward(self, images):
        return self.head(self.stages(self.stem(images)))


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut, which is projected where the shape changes."""

    def __init__(self, channels, width, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.shortcut = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        self.activation = nn.ReLU()

    def forward(self, images):
        return self.activation(self.body(images) + self.shortcut(images))


class SiLUNet(nn.Module):
    """Depthwise-separable convolutions with BatchNorm and SiLU, as in MobileNet and EfficientNet.

    Images [N, 3, H, W] -> [N, classes]. (Howard et al., arXiv:1704.04861; Tan and Le, arXiv:1905.11946)
    """

    def __init__(self, classes, width=64, depth=3):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.SiLU())
        self.blocks = nn.Sequential(*(SeparableBlock(width) for _ in range(depth)))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))

    def forward(self, images):
        return self.head(self.blocks(self.stem(images)))


class SeparableBlock(nn.Module):
    """A 3×3 convolution of each channel by itself, then a 1×1 convolution across them, and a shortcut."""

    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False),
            nn.BatchNorm2d(width),
            nn.SiLU(),
            nn.Conv2d(width, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.SiLU(),
        )

    def forward(self, x):
        return x + self.body(x)


class SiLUMLP(nn.Module):
    """Residual layers of SiLU and LayerNorm over small matrices, on the pixels averaged to 8×8."""

    def __init__(self, classes, width=256, depth=6):
        super().__init__()
        self.stem = nn.Sequential(nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(3 * 64, width))
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU()) for _ in range(depth)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        x = self.stem(images)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


class Transformer(nn.Module):
    """A small vision transformer: patches of 4×4 pixels, pre-norm blocks, mean over the patches.

    Images [N, 3, H, W] with H and W multiples of 4, up to 64 -> [N, classes].
    (Dosovitskiy et al., arXiv:2010.11929)
    """

    def __init__(self, classes, width=64, depth=2, heads=4):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.rows = nn.Parameter(torch.randn(1, width, 16, 1) * 0.02)
        self.columns = nn.Parameter(torch.randn(1, width, 1, 16) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads, causal=False) for _ in range(depth)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))

    def forward(self, images):
        x = self.patches(images)
        x = x + self.rows[:, :, : x.shape[2]] + self.columns[:, :, :, : x.shape[3]]
        return self.head(self.blocks(x.flatten(2).transpose(1, 2)).mean(1))
