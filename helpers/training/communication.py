"""What DDP's own clocks say of the exchange of gradients."""

from torch.nn.parallel import DistributedDataParallel


def measured(model) -> dict | None:
    """Seconds a step of rank 0 that communication took; None for a model without DDP, or of one rank.

    DDP times its first ten steps, and every hundredth after them. "hidden_s" ran while the backward pass still
    computed, "exposed_s" is what was waited for after it, the wait for a slower rank included.
    See torch.nn.parallel.DistributedDataParallel._get_ddp_logging_data (torch/csrc/distributed/c10d/logger.cpp).
    """
    if not isinstance(model, DistributedDataParallel) or model.process_group.size() == 1:
        return None
    clocks = model._get_ddp_logging_data()
    whole, hidden = (clocks.get(f"avg_backward_{name}_time", 0) for name in ("comm", "compute_comm_overlap"))
    if not whole:
        return None
    timed = min(10, clocks["iteration"]) + clocks["iteration"] // 100
    return {"steps": timed, "exposed_s": max(0, whole - hidden) / 1e9, "hidden_s": min(whole, hidden) / 1e9}
