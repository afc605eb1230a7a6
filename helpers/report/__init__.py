"""What records say, as a table, figures, a few sentences and one page.

from helpers import report
found = report.everything()                     # all records of this machine
found = report.everything("results", "theirs")  # and those of another, in the folder "theirs"
found.write("my_report")                        # all_runs.html, all_runs.csv, all_runs.json
"""

from .report import Report, everything
from .sentences import COLUMNS, conclusions

__all__ = ["COLUMNS", "Report", "conclusions", "everything"]
