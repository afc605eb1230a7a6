"""Elastic training is not offered for TensorFlow; asking for it says so."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotImplementedError(
        f"hvd.elastic.{name} is not offered for TensorFlow and Keras: the set of ranks stays the same for a whole run. "
        "Save checkpoints (on rank 0) and start again from the last one; platforms.horovod.torch.elastic is "
        "there for PyTorch"
    )
