"""Tables and figures of runs, in one style. A figure comes with a text that says what it shows: (figure, alt).

Figures are made of what `layout` has (a sheet, rows of bars, lines) and `panels` (many runs in a few columns); `style`
has the look, and makes PNG, SVG, HTML or the output of a cell.
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
