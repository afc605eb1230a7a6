"""What a training step costs on n devices.

model      the cost model itself, also `costmodel.step`, `costmodel.Link`, …
fit        two short measurements on ranks, and the model's numbers that they give
links      steps predicted and measured, here and between two hosts on slow links
published  what others have published
splitting  memory and steps of a GPT that is split among devices, and the fastest way to split it
figures    plots of all these
"""

from .model import Compute, Link, Step, all_reduce, buckets, curve, in_hosts, overlap, scaled, step

__all__ = ["Compute", "Link", "Step", "all_reduce", "buckets", "curve", "in_hosts", "overlap", "scaled", "step"]
