"""`import helpers.hvd.tensorflow.keras as hvd`: the other name of `helpers.hvd.keras`."""

# ruff: noqa: F401, F403

from ...keras import *
from . import callbacks
