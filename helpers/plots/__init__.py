"""Tables and figures of runs, in one style. A figure comes with a text that says what it shows: (figure, alt).

style      the look (kit.mplstyle); PNG, SVG, HTML and the output of a cell
layout     a sheet with title, key and notes; rows of bars; lines with names at their ends
ladder     the speed-up of the runs of a comparison
runs       the wall time of single runs, by part
accuracy   learning curves, and the time to an accuracy
precision  speed over the batch
panels     many runs in a few columns
tables     the numbers of a comparison, and its settings in words
"""

from ..records.seeds import summary
from .accuracy import accuracy_curves, time_to_accuracy
from .ladder import speed_up
from .precision import speed_over_batch
from .runs import parts
from .style import show
from .tables import cells, settings, table

__all__ = ["accuracy_curves", "parts", "speed_over_batch", "speed_up", "time_to_accuracy"]
__all__ += ["cells", "settings", "show", "summary", "table"]
