"""Keras has to compute with TensorFlow here."""


def check():
    """Raise ImportError unless Keras can be imported and its backend is TensorFlow; does not import TensorFlow."""
    import keras

    if keras.backend.backend() != "tensorflow":
        raise ImportError(
            f"platforms.horovod.keras is for Keras on TensorFlow; here Keras computes with "
            f"{keras.backend.backend()}. Set "
            "KERAS_BACKEND=tensorflow before keras is imported (with PyTorch below it, use platforms.horovod.torch)"
        )


def refuse_legacy(thing):
    """Raise ValueError for a model or an optimizer of Keras 2 (tf_keras)."""
    if any(kind.__module__.split(".")[0] == "tf_keras" for kind in type(thing).__mro__):
        raise ValueError(
            f"this {type(thing).__name__} is of tf_keras (Keras 2), and platforms.horovod.keras is for Keras 3. Write "
            "`import keras` for `import tf_keras`, and start the script by `env -u TF_USE_LEGACY_KERAS python "
            "script.py`, so that tf.keras is Keras 3 too; hvd.DistributedGradientTape and hvd.broadcast_variables "
            "take tf_keras models"
        )
