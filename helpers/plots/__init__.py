"""Tables and figures of runs, in one style. A figure comes with a text that says what it shows: (figure, alt).

style      the look; PNG, SVG, HTML and the output of a cell
layout     a sheet with title, key and notes; rows of bars; lines with names at their ends
ladder     the speed-up of the runs of a comparison
runs       the wall time of single runs, by part
accuracy   learning curves, and the time to an accuracy
precision  speed over the batch
panels     many runs in a few columns, for reports
tables     the numbers of a comparison, and its settings in words
"""

from ..records.seeds import summary
from ..records.words import clean, name, number, percent, times
from .accuracy import accuracy_curves, time_to_accuracy
from .ladder import speed_up
from .precision import speed_over_batch
from .runs import parts
from .style import show
from .tables import cells, settings, shown, table

__all__ = [
    "accuracy_curves",
    "cells",
    "clean",
    "name",
    "number",
    "parts",
    "percent",
    "settings",
    "show",
    "shown",
    "speed_over_batch",
    "speed_up",
    "summary",
    "table",
    "time_to_accuracy",
    "times",
]
