"""Pairs of records that differ in one thing, so that a difference in speed has one cause."""

from ..plots.style import percent
from ..records import store

NO_MATTER = (  # settings that leave the time of a step as it is
    "label", "seed", "epochs", "steps", "warmup_steps", "lr", "evaluate", "evaluate_every", "lr_scaling", "base_batch",
    "lr_warmup_epochs", "schedule", "momentum", "weight_decay", "checkpoint_dir", "checkpoint_every", "resume",
    "num_workers", "device",
)  # fmt: skip
BATCH = ("global_batch", "local_batch", "accumulation", "strategy")  # and these go together
COMPUTES = ("precision", "compiler", "channels_last")


def ids(*records) -> tuple:
    """The ids of records with those of all rounds that were put together in them."""
    return tuple(dict.fromkeys(run for record in records for run in record.get("rounds") or [record["run_id"]]))


def partner(record, records, **changed):
    """The last of `records` with timed steps that has the values `changed` and else differs in nothing that matters.

    With a changed batch or number of devices, all settings of batch and strategy may differ. None: there is none.
    `records` is a list, or a row of a `reading_pool`, which knows where to look among very many.
    """
    apart = changes(changed)
    likely = records.partners(record, changed) if hasattr(records, "partners") else reversed(records)
    for other in likely:
        right = all(other["config"].get(key) == value for key, value in changed.items())
        if right and other["run_id"] not in ids(record) and timed(other) and alike(other, record, apart):
            return other
    return None


def changes(changed) -> set:
    """The settings that may differ where those of `changed` do: batch and strategy go with the number of devices."""
    return {*changed, *(BATCH if {"global_batch", "nproc_per_node"} & set(changed) else ())}


def alike(one, other, apart=BATCH) -> bool:
    """Whether two runs differ in settings in `apart` only, and in those that leave the time of a step as it is."""
    keys = {*one["config"], *other["config"]} - {*NO_MATTER, *apart}
    return all(one["config"].get(key) == other["config"].get(key) for key in keys)


def computes_alike(one, other) -> bool:
    """Whether one device computes in the same way in both."""
    return all(one["config"].get(key) == other["config"].get(key) for key in COMPUTES)


def timed(record) -> bool:
    """Whether it completed and had enough steps to time."""
    return record["status"] == "completed" and bool(record["measured"]["images_per_s"])


def spread(record, base) -> tuple:
    """(median, lower, upper quartile) of a record's speed over another's median."""
    rate, middle = record["measured"]["images_per_s"], base["measured"]["images_per_s"]["median"]
    return tuple(rate[key] / middle for key in ("median", "q1", "q3"))


def accuracies(record, base) -> str:
    """The accuracies of both, to stand beside a speed; "" if one has none."""
    found = [store.row(one)["accuracy"] for one in (record, base)]
    return "" if None in found else f"; accuracy {percent(found[0])} beside {percent(found[1])}"
