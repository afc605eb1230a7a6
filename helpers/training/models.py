"""The models of the ladder, by name, for any image size and number of classes."""

from torch import nn

from ..config import MODELS
from . import pointwise

POINTWISE = {
    "silunet": pointwise.SiLUNet, "silu_mlp": pointwise.SiLUMLP,
    "transformer": pointwise.Transformer,
}  # fmt: skip


def make(model, classes) -> nn.Module:
    """The model that a RunConfig asks for: by name, or by the reader's own function.

    Raises:
        TypeError: the function does not return a module.
        ValueError: no such name, or the number of classes is not known.
    """
    if callable(model):
        made = model()
        if not isinstance(made, nn.Module):
            name = getattr(model, "__name__", model)
            raise TypeError(f"{name}() returned {type(made).__name__}, not a torch.nn.Module")
        return made
    if classes is None:
        raise ValueError(
            f"how many classes has your data set? Give it an attribute `classes`, or replace {model!r} by a "
            "function that makes your model"
        )
    return build(model, classes)


def build(name, classes) -> nn.Module:
    """A freshly initialised model for images [N, 3, H, W] with `classes` outputs.

    `resnet8` and `resnet20` are the small networks for 32×32 images of He et al., "Deep residual
    learning for image recognition" (arXiv:1512.03385, section 4.2); `resnet18` and `resnet50` are
    torchvision's, whose first layers were made for 224×224 images. `silunet`, `silu_mlp` and
    `transformer` are small models with much pointwise work (helpers/training/pointwise.py).

    Raises:
        ValueError: there is no such model.
    """
    if name == "resnet8":
        return SmallResNet(blocks=1, classes=classes)
    if name == "resnet20":
        return SmallResNet(blocks=3, classes=classes)
    if name in POINTWISE:
        return POINTWISE[name](classes)
    if name in MODELS:
        import torchvision.models

        return getattr(torchvision.models, name)(num_classes=classes)
    raise ValueError(f"no model called {name!r}; there are {', '.join(MODELS)}, or pass a function that makes yours")


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
                stages.append(Block(channels, width, stride=2 if stage and not block else 1))
                channels = width
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.stages = nn.Sequential(*stages)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))

    def forward(self, images):
        return self.head(self.stages(self.stem(images)))


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut, which is projected where the shape changes."""

    def __init__(self, channels, width, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip
        self.shortcut = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )
        self.activation = nn.ReLU()

    def forward(self, images):
        return self.activation(self.body(images) + self.shortcut(images))
