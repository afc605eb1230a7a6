"""Inside a training step: when each rank computes, sends and waits (`timeline`), and what fills its memory (`memory`).

Everything comes from torch.profiler and PyTorch's own hooks; the function that trains needs no marks of its own.
"""
