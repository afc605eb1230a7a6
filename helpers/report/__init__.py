"""What records say, as a table, figures, a few sentences and one page.

from helpers import report
found = report.everything()                     # all records of this machine
found = report.everything("results", "theirs")  # and those of another, in the folder "theirs"
found.write("my_report")                        # all_runs.html, all_runs.csv, all_runs.json

report        reads records, and hands them to all that follows
ladders       records sorted by machine, and into ladders of runs that may be compared
compare_runs  how the settings of two records differ
conclusions   each run beside its baseline, as one table
sentences     what a ladder says; causes: why a run was faster or not, as far as its records hold it
figures       the figures of a report; published: tables of the source articles beside ours
page          one HTML page, from page.html and parts.html; export: CSV and JSON
short_ladder  a ladder of half a minute, where nothing was recorded yet
cli           python -m helpers report
"""

from .conclusions import COLUMNS, conclusions
from .report import Report, everything, of
from .short_ladder import short_ladder

__all__ = ["COLUMNS", "Report", "conclusions", "everything", "of", "short_ladder"]
