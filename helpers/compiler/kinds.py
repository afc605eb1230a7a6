"""What kind of work an operator does: read from its own tags and signature, never guessed."""

import re
from functools import cache

import torch
from torch import Tag

POINTWISE, NORMALISATION, MATMUL = "pointwise", "normalisation", "matmul"
CONVOLUTION, DEPTHWISE = "convolution", "depthwise convolution"
REDUCTION, OTHER, BOOKKEEPING = "pooling/softmax/loss", "other", "bookkeeping"
KINDS = (CONVOLUTION, DEPTHWISE, MATMUL, NORMALISATION, POINTWISE, REDUCTION, OTHER, BOOKKEEPING)

# Of operators that no tag describes: whole names, so that an unknown one cannot match by accident.
NAMES = {kind: re.compile(pattern) for kind, pattern in {
    CONVOLUTION: r"_?convolution(_backward)?(_overrideable)?|(cudnn|miopen|mkldnn|mps)_(depthwise_)?convolution\w*"
    r"|_mps_convolution\w*|_nnpack_spatial_convolution|_conv_depthwise2d|conv_depthwise3d"
    r"|_?(slow|thnn)_conv\w*|conv_tbc(_backward)?",
    MATMUL: r"_?(scaled_|int_|grouped_|sparse_)?((add|badd|ba?)?b?mm|addmv|addr|mv|dot|vdot|matmul)"
    r"|_addmm_activation|(mkldnn_)?linear(_backward)?|mkldnn_linear_backward_(input|weights)"
    r"|_scaled_dot_product_\w+_attention\w*|_(flash|efficient|cudnn)_attention_(forward|backward)",
    NORMALISATION: r"_?(native_|cudnn_|miopen_|fused_)?(batch|layer|group|instance|rms)_norm(_\w+)?",
    POINTWISE: r"copy_|fill_|zero_|clone|_to_copy|bernoulli_?|native_dropout|_fused_dropout|hardswish|glu"
    r"|_prelu_kernel|log_sigmoid_forward|log_sigmoid|masked_fill_",
    REDUCTION: r"_?(mkldnn_)?(adaptive_|fractional_)?(max|avg)_(un)?pool[123]d\w*|_?(log_|safe_|masked_)?softmax(_\w+)?"
    r"|\w+_loss(2d)?(_forward)?|binary_cross_entropy|(nan)?sum|mean|amax|amin|aminmax|argmax|argmin|prod|var|std"
    r"|(var|std)_mean|any|all|count_nonzero|norm|linalg_vector_norm|logsumexp",
}.items()}  # fmt: skip
AMBIGUOUS = ("aten::max", "aten::min")  # of one tensor a reduction, of two pointwise
MEMORY = re.compile("empty|empty_strided|resize_|set_")  # given out, nothing computed
OWN = "GeneratedBackwardFor_"  # so the profiler calls an operator made by torch.library, and its gradient
GROUPED = {  # what every convolution of a model ends in: the names of its arguments
    f"aten::{name}": [argument.name for argument in getattr(torch.ops.aten, name).default._schema.arguments]
    for name in ("convolution", "convolution_backward")
}


@cache
def kind(name, device="cpu"):
    """The kind of the operator `name`, say "aten::add": one of KINDS, or None if it computes nothing itself.

    It is None for an operator that only calls others, looks at a tensor in another way or reserves memory,
    and for a name that is no operator: a node of autograd, a label that the reader gave to a block. What
    PyTorch does not describe, such as the reader's own operator, is OTHER.

    Args:
        device: the type of a torch.device; without a kernel of its own there, an operator of PyTorch is
            made of others, and they are what is counted.
    """
    if name.startswith(OWN):
        return OTHER
    namespace, _, base = name.partition("::")
    forms = _forms(namespace, base)
    if not forms:
        return None
    # What PyTorch says of add holds for add_, and the gradient of a pointwise function is pointwise.
    bases = (base, base.removesuffix("_"), base.removesuffix("_backward"))
    tags = {tag for each in bases for form in _forms(namespace, each) for tag in form.tags}
    if Tag.pointwise in tags and name not in AMBIGUOUS:
        return POINTWISE
    if namespace == "aten":
        found = next((kind for kind, names in NAMES.items() if any(map(names.fullmatch, bases))), None)
        own = any(_has_kernel(form, device) for form in forms)
        if found in (CONVOLUTION, POINTWISE) or (own and found):
            return found
        if not own or MEMORY.fullmatch(base) or not any(map(_computes, forms)):
            return None
    return OTHER


def of_call(name, arguments, shapes, device="cpu"):
    """`kind` of one call, which tells a depthwise convolution from others.

    Args:
        arguments: of the call, in order; where they are tensors, anything.
        shapes: of its arguments, in order; where they are no tensors, anything.
    """
    found = kind(name, device)
    if found == CONVOLUTION and name in GROUPED:
        names = GROUPED[name]
        groups, channels = arguments[names.index("groups")], shapes[names.index("input")][1]
        return DEPTHWISE if groups == channels > 1 else CONVOLUTION  # each channel by itself
    return found


@cache
def _forms(namespace, base):
    """The overloads of an operator that take or return tensors, less those that write to `out`."""
    try:
        packet = getattr(getattr(torch.ops, namespace), base)
        forms = [getattr(packet, overload) for overload in packet.overloads()]
    except (AttributeError, RuntimeError):
        return ()
    return tuple(
        form for form in forms
        if any("Tensor" in str(each.type) for each in (*form._schema.arguments, *form._schema.returns))
        and not any(argument.is_out for argument in form._schema.arguments)
    )  # fmt: skip


def _has_kernel(form, device):
    if form.name() not in _dispatched():  # it is there for TorchScript only
        return False
    return form.has_kernel_for_dispatch_key(torch._C._dispatch_key_for_device(device))


@cache
def _dispatched():
    return frozenset(torch._C._dispatch_get_all_op_names())


def _computes(form):
    return not form.is_view and any("Tensor" in str(each.type) for each in form._schema.returns)
