"""`import platforms.horovod.tensorflow.keras as hvd`: the other name of `platforms.horovod.keras`."""

# ruff: noqa: F401, F403

from ...keras import *
from . import callbacks
