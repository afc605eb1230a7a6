"""Keras has to compute with TensorFlow here."""


def check():
    """Raise ImportError unless Keras can be imported and its backend is TensorFlow; does not import TensorFlow."""
    import keras

    if keras.backend.backend() != "tensorflow":
        raise ImportError(
            f"helpers.hvd.keras is for Keras on TensorFlow; here Keras computes with {keras.backend.backend()}. Set "
            "KERAS_BACKEND=tensorflow before keras is imported (with PyTorch below it, use helpers.hvd.torch)"
        )
