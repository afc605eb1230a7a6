"""Tables and figures of runs, in one style. A figure comes with a text that says what it shows: (figure, alt).

Figures are made of what `layout` has (a sheet, rows of bars, lines) and `panels` (many runs in a few columns); `style`
has the look, and makes PNG, SVG, HTML or the output of a cell.
"""

from .accuracy import time_to_accuracy
from .ladder import speed_up
from .runs import parts
from .style import show
from .tables import cells, settings, table

__all__ = ["cells", "parts", "settings", "show", "speed_up", "table", "time_to_accuracy"]
