"""Models that spend much of their time between the matrix products, where a compiler can help.

A ResNet is nearly all convolution. These have many small pointwise operations (activations,
normalisations, additions), each of which reads and writes its whole tensor unless it is fused.
"""

import torch
from torch import nn


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
            nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False), nn.BatchNorm2d(width), nn.SiLU(),
            nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width), nn.SiLU(),
        )  # fmt: skip

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
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads) for _ in range(depth)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))

    def forward(self, images):
        x = self.patches(images)
        x = x + self.rows[:, :, : x.shape[2]] + self.columns[:, :, :, : x.shape[3]]
        return self.head(self.blocks(x.flatten(2).transpose(1, 2)).mean(1))


class TransformerBlock(nn.Module):
    """Attention and an MLP with GELU, each behind a LayerNorm and beside a shortcut; [N, L, width] -> the same."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        n, length, width = x.shape
        qkv = self.qkv(self.before_attention(x)).view(n, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, length, width)
        x = x + self.out(mixed)
        return x + self.mlp(self.before_mlp(x))
