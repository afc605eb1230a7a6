"""The checks of the notebooks' exercises, their hints and solutions."""

from .solution import solution as solution
