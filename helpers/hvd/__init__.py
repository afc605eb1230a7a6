"""Horovod's API on open parts: scripts written for Horovod run here after one changed import.

    import helpers.hvd.torch as hvd        # was: import horovod.torch as hvd

`helpers.hvd.core` matches tensors by name, decides their order and watches the ranks;
`helpers.hvd.plane` moves the data with torch.distributed; `helpers.hvd.torch`, `.tensorflow`,
`.keras`, `.mxnet` and `.caffe` are the spellings of the frameworks; `helpers.hvd.ddp` is a
drop-in for torch.distributed and DDP. `python -m helpers.hvd script.py` runs a script that says
`import horovod…` as it is. API: https://horovod.readthedocs.io
"""
