"""The callbacks of `platforms.horovod.keras`."""

from ...keras.callbacks import *  # noqa: F403
