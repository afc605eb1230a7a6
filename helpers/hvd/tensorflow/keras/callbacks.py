"""The callbacks of `helpers.hvd.keras`."""

from ...keras.callbacks import *  # noqa: F403
