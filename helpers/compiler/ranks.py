"""All ranks must choose the same plan at the same step; this is what they tell each other for it."""

import torch.distributed as dist


def there_are_others() -> bool:
    """Whether this process is in a group with other ranks."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def is_main() -> bool:
    """Whether this is the rank that speaks."""
    return not there_are_others() or dist.get_rank() == 0


def told_by_all(value) -> list:
    """`value` of every rank, in their order."""
    if not there_are_others():
        return [value]
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def told_by_main(value):
    """The `value` of rank 0."""
    if not there_are_others():
        return value
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def world_size() -> int:
    """Ranks that tune together."""
    return dist.get_world_size() if there_are_others() else 1
