"""What a training step costs on n devices."""

from .model import *  # noqa: F403
