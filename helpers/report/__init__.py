"""What records say, as a table, figures, a few sentences and one page.

from helpers import report
found = report.everything()                     # all records of this machine
found = report.everything("results", "theirs")  # and those of another, in the folder "theirs"
found.write("my_report")                        # all_runs.html, all_runs.csv, all_runs.json

report    reads records; ladders sorts them by machine, and into runs that may be compared (compare_runs)
conclusions, sentences, causes  what they say; figures, published: what is drawn of them
page, export  files: HTML, CSV and JSON; cli: python -m helpers report
short_ladder  a ladder of half a minute, where nothing was recorded yet
"""

from .conclusions import COLUMNS, conclusions
from .report import Report, everything, of
from .short_ladder import short_ladder

__all__ = ["COLUMNS", "Report", "conclusions", "everything", "of", "short_ladder"]
