"""Horovod's API on open parts: scripts written for Horovod run here after one changed import.

    import platforms.horovod.torch as hvd        # was: import horovod.torch as hvd

    core         compares what the ranks ask for, in program order, and watches the ranks; knows no framework
    collectives  moves the data with torch.distributed
    torch, tensorflow, keras, mxnet, caffe   Horovod's API for each framework
    arrays, compression   what the frameworks other than torch share
    ddp          a drop-in for torch.distributed and DistributedDataParallel
    imports, start, shims   `python -m platforms.horovod script.py` runs a script that imports horovod as it is
    figures, observed   what notebook 08 draws, and how it watches a script

API: https://horovod.readthedocs.io
"""


def __getattr__(name):
    if name == "run":  # `horovod.run`
        from .start import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
