"""Many gradients reduced in one go, for the frameworks that hand over NumPy arrays."""

import numpy

from . import arrays


def even_groups(count, number, dtypes):
    """Lists of the indices below `count`: `number` runs of about the same length, each of one dtype only."""
    groups = {}
    for i in range(count):
        groups.setdefault((i * number // count, str(dtypes[i])), []).append(i)
    return list(groups.values())


def allreduce_groups(tensors, names=None, groups=None, read=numpy.asarray, **options):
    """Reduce tensors over the ranks, those of a group as one operation; a list of arrays in the order of `tensors`.

    All groups are submitted before one is waited for, so that small ones travel together. The last ones come first:
    backward makes their gradients first.

    Args:
        names: of the tensors; a group has the name of its first.
        groups: lists of indices, each index in one of them; None: each tensor is reduced alone.
        read: makes an array of a tensor, and waits for its values.
        options: op, prescale_factor, postscale_factor and process_set.
    """
    groups = [[i] for i in range(len(tensors))] if groups is None else groups
    values = [read(tensor) for tensor in tensors]  # all of backward ends here, with the collectives of layers in it
    handles = [
        arrays.grouped_allreduce_async([values[i] for i in group], names and names[group[0]], **options)
        for group in reversed(groups)
    ]
    results = {}
    for group, handle in zip(groups, reversed(handles)):
        results.update(zip(group, arrays.synchronize(handle)))
    return [results[i] for i in range(len(tensors))]
