"""Hundreds of launches in real Jupyter kernels, a third of them with planted failures: `python -m tools.soak`.

plans    which launch does what, from a seed
inside   what the kernel runs: one launch as planned, and what came of it
drive    one kernel from outside: starts it, interrupts it, kills its ranks, looks at it after each launch
held     what processes hold: descriptors, threads, memory, children, files
judge    whether what came of a launch is what had to come of it
report   progress, the table at the end, JSON
"""
