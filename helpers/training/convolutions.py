"""Convolutions of small images as products of matrices, where the library's own kernels are far from the peak.

With the channels of a pixel side by side, a 1×1 convolution is a product [pixels, in] × [in, out], and the gradient
of a k×k kernel is k² products [out, pixels] × [pixels, in], one for each place in the kernel. The places of a kernel
that only ever meet the padding, eight of nine at an image of one pixel, need none.

oneDNN has kernels of its own for AVX-512; on a CPU with AVX2 alone it computes that gradient for images below 4×4 at a
tenth of the peak and less (its "x64:gemm:jit", as ONEDNN_VERBOSE=1 tells), and 1×1 convolutions of 1×1 images at a
fifth. A product of matrices runs at the peak for all of them. The numbers are the same but for rounding.
"""

import torch
import torch.nn.functional as F
from torch import nn

MOST_PIXELS, LEAST_CHANNELS = 64, 64  # of an output: with larger images or fewer channels the library is as fast


def helps(device) -> bool:
    """Whether `device` is a CPU on which products were found to be faster: one with AVX2 and no AVX-512."""
    return device.type == "cpu" and torch.backends.cpu.get_cpu_capability() == "AVX2"


def as_products(model) -> int:
    """Let the convolutions in `model` compute by products where that is faster; how many there are.

    Each layer stays the object that it is, with its weights, names and hooks. What is no plain nn.Conv2d (grouped,
    dilated, padded with anything but zeros, a class of the reader's own) is left alone.
    """
    found = [layer for layer in model.modules() if _is_plain(layer)]
    for layer in found:
        layer.__class__ = ProductConv2d
    return len(found)


def _is_plain(layer):
    return (
        type(layer) is nn.Conv2d and layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str) and min(layer.in_channels, layer.out_channels) >= LEAST_CHANNELS
    )  # fmt: skip


class ProductConv2d(nn.Conv2d):
    """A convolution that chooses by the images that it gets: large ones and half formats are the library's."""

    def forward(self, images):
        if not self._small(images):
            return super().forward(images)
        if self.kernel_size == (1, 1) and self.padding == (0, 0):
            down, right = self.stride
            pixels = images.permute(0, 2, 3, 1)[:, ::down, ::right]
            weight = self.weight.permute(0, 2, 3, 1).flatten(1)  # so its gradient gets the strides that DDP wants
            return F.linear(pixels, weight, self.bias).permute(0, 3, 1, 2)
        made = Convolution.apply(images, self.weight, self.stride, self.padding)
        return made if self.bias is None else made + self.bias.view(-1, 1, 1)

    def _small(self, images):
        if images.dim() != 4 or images.dtype not in (torch.float32, torch.float64) or torch.is_autocast_enabled("cpu"):
            return False
        places = zip(images.shape[2:], self.kernel_size, self.stride, self.padding, strict=True)
        down, right = ((size + 2 * padding - kernel) // stride + 1 for size, kernel, stride, padding in places)
        last = images.is_contiguous(memory_format=torch.channels_last)
        return last and min(down, right) > 0 and down * right <= MOST_PIXELS


class Convolution(torch.autograd.Function):
    """The library's convolution, whose gradient for the weights is made of products."""

    @staticmethod
    def forward(ctx, images, weight, stride, padding):
        ctx.save_for_backward(images, weight)
        ctx.stride, ctx.padding = stride, padding
        return F.conv2d(images, weight, None, stride, padding)

    @staticmethod
    def backward(ctx, gradient):
        images, weight = ctx.saved_tensors
        of_images = of_weight = None
        if ctx.needs_input_grad[0]:
            of_images, _, _ = torch.ops.aten.convolution_backward(
                gradient, images, weight, None, ctx.stride, ctx.padding, (1, 1), False, (0, 0), 1, (True, False, False)
            )
        if ctx.needs_input_grad[1]:
            of_weight = weight_gradient(images, gradient, weight, ctx.stride, ctx.padding)
        return of_images, of_weight, None, None


def weight_gradient(images, gradient, weight, stride, padding):
    """Gradient [O, C, k, l] of `weight` from images [N, C, H, W] and the outputs' gradient [N, O, P, Q]."""
    images, gradient = images.permute(0, 2, 3, 1), gradient.permute(0, 2, 3, 1)
    found = torch.zeros_like(weight)
    for down in range(weight.shape[2]):
        rows = meeting(images.shape[1], gradient.shape[1], down, stride[0], padding[0])
        for right in range(weight.shape[3]):
            columns = meeting(images.shape[2], gradient.shape[2], right, stride[1], padding[1])
            if rows is None or columns is None:
                continue
            seen = images[:, rows[0], columns[0]].flatten(0, 2)
            found[:, :, down, right] = gradient[:, rows[1], columns[1]].flatten(0, 2).t() @ seen
    return found


def meeting(size, outputs, place, stride, padding):
    """(slice of the image's rows, slice of the output's) that meet at row `place` of the kernel; None if none do.

    Output row o sees image row o·stride + place - padding, where that is one of `size` and no padding.
    """
    first = max(0, -((place - padding) // stride))
    last = min(outputs - 1, (size - 1 + padding - place) // stride)
    if last < first:
        return None
    begin, end = (row * stride + place - padding for row in (first, last))
    return slice(begin, end + 1, stride), slice(first, last + 1)
