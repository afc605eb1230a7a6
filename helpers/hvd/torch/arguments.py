"""What `DistributedOptimizer` is given, checked and brought into one form."""

import torch


def named_pairs(optimizer, named_parameters):
    """Pairs (name, parameter) of all parameters of the optimizer; ValueError as `DistributedOptimizer` says."""
    if named_parameters is None:
        return numbered(optimizer)
    named = list(named_parameters)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in named):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
            "model.named_parameters()."
        )
    names = [name for name, _ in named]
    twice = sorted({str(name) for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise ValueError(
            f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(twice)}. "
            "Put a prefix before the names of each model"
        )
    known = {id(parameter) for _, parameter in named}
    unnamed = [name for name, parameter in numbered(optimizer) if id(parameter) not in known]
    if unnamed:
        raise ValueError(
            "named_parameters was specified, but one or more model parameters were not named: "
            f"{len(unnamed)} of the optimizer's (as {', '.join(unnamed[:5])}: group and place)"
        )
    return named


def numbered(optimizer):
    """Pairs (name, parameter) with names made of the numbers of group and place."""
    return [
        (f"allreduce.noname.{i}.{j}", parameter)
        for i, group in enumerate(optimizer.param_groups)
        for j, parameter in enumerate(group["params"])
    ]


def checked_groups(groups):
    """`groups`, or None where there is none; ValueError when it is neither a number nor lists of tensors."""
    if groups is None:
        return None
    if not isinstance(groups, (list, tuple)):
        if not isinstance(groups, int) or groups < 0:
            raise ValueError("groups should be a non-negative integer or a list of list of torch.Tensor.")
        return groups or None
    members = [parameter for group in groups for parameter in group]
    if not all(isinstance(parameter, torch.Tensor) for parameter in members):
        raise ValueError("groups must consist of torch.Tensor.")
    if len({id(parameter) for parameter in members}) < len(members):
        raise ValueError("A parameter can only appear once in groups.")
    return groups


def check_passes(passes):
    """ValueError unless `passes` can be a number of backward passes."""
    if not isinstance(passes, int) or passes < 1:
        raise ValueError(f"backward_passes_per_step is {passes!r}; give a positive integer")
