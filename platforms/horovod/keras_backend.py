"""Keras has to compute with TensorFlow here."""


def check():
    """Raise ImportError unless Keras can be imported and its backend is TensorFlow; does not import TensorFlow."""
    import keras

    if keras.backend.backend() != "tensorflow":
        raise ImportError(
            f"platforms.horovod.keras is for Keras on TensorFlow; here Keras computes with {keras.backend.backend()}. "
            "Set KERAS_BACKEND=tensorflow before keras is imported (with PyTorch below it, use platforms.horovod.torch)"
        )


def is_keras_2(thing):
    """Whether a model or an optimizer is one of tf_keras."""
    return any(kind.__module__.split(".")[0] == "tf_keras" for kind in type(thing).__mro__)
