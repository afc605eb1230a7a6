"""Everything that was ever recorded, in one report: this machine's records, and those of others beside them.

found = report.everything()                    # of this machine
found = report.everything("results", "theirs") # and of another, whose records lie in the folder "theirs"
found.write("my_report")                       # all_runs.html, all_runs.csv, all_runs.json
"""

import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ..records import read
from ..records.read import Found
from . import ladder_sentences, ladders
from .between import between
from .pool import Pool

FORMATS = ("html", "csv", "json")
NAME = "all_runs"


@dataclass(repr=False)
class Report:
    """What was found, sorted and read.

    Attributes:
        found: records and skipped files.
        target: the accuracy whose time is told, a share of one.
        sites: machines with their ladders; the first has the newest record.
        said: [(site, ladder, sentences)], each sentence (text, ids of the records that back it).
        between: sentences that compare machines.

    Sentences are made when they are asked for.
    """

    found: Found
    target: float
    sites: list = field(init=False)

    def __post_init__(self):
        self.sites = ladders.sites(self.found.records)
        self._said, self._pools = {}, {}

    @property
    def said(self) -> list:
        """The sentences about all ladders, the newest of each machine first."""
        return [(site, ladder, self._of(site, ladder)) for site in self.sites for ladder in site.ladders]

    @cached_property
    def between(self) -> list:
        """Sentences that compare machines."""
        return between(self.sites)

    def _of(self, site, ladder):
        if id(ladder) not in self._said:
            pool = self._pools.setdefault(id(site), Pool(site.ladders[::-1]))
            said = ladder_sentences.of_ladder(ladder, pool.ending_with(ladder), self.target)
            self._said[id(ladder)] = said
        return self._said[id(ladder)]

    @property
    def records(self) -> list:
        """The records as they are on disk, each with its "file"."""
        return self.found.records

    def of(self, site, newest=None) -> list:
        """[(ladder, sentences)] of one machine, the `newest` (None: all), the newest first."""
        return [(ladder, self._of(site, ladder)) for ladder in site.ladders[:newest]]

    def write(self, folder, formats=FORMATS) -> dict:
        """Write all_runs.html (one page that opens offline), .csv and .json; returns the paths by format.

        Each file is replaced in one step.

        Raises:
            ValueError: a format that is not one of FORMATS, or there is no record to write of.
        """
        from . import export

        formats = [formats] if isinstance(formats, str) else list(formats)
        unknown = [name for name in formats if name not in FORMATS]
        if unknown or not formats:
            raise ValueError(
                f"formats are {', '.join(FORMATS)}; asked for was {', '.join(map(str, unknown)) or 'none'}"
            )
        if not self.records:
            raise ValueError(nothing(self.found))
        return export.write(self, Path(folder), NAME, formats)

    def sentences(self, ladder) -> list:
        """The sentences about one of the ladders."""
        site = next(site for site in self.sites if any(one is ladder for one in site.ladders))
        return self._of(site, ladder)

    def show(self, ladder=None) -> None:
        """In a notebook: the sentences about a ladder (None: the newest), with links to its records below them."""
        from . import page

        if not self.sites:
            raise ValueError(nothing(self.found))
        page.show(self, ladder or self.sites[0].ladders[0])

    def text(self) -> str:
        """All sentences, for a terminal."""
        from . import text as report_text

        return report_text.text(self)

    __repr__ = __str__ = text


def everything(*places, target=ladder_sentences.TARGET) -> Report:
    """Read all records in the given folders and files, or on this machine, and say what they say.

    Args:
        target: the accuracy whose time is told, a share of one.

    Raises:
        FileNotFoundError: a folder or file is not there.
        ValueError: `target` is no share of one.
    """
    if isinstance(target, bool) or not isinstance(target, (int, float)) or not 0 < target <= 1 or math.isnan(target):
        raise ValueError(f"target is {target!r}; give an accuracy as a share of one, such as 0.9")
    return Report(read.read(*places), float(target))


def nothing(found) -> str:
    """What to say where there is no record."""
    places = ", ".join(str(place) for place in found.places)
    skipped = "".join(f"\n  {file}: {why}" for file, why in found.skipped[:10])
    return f"no record of a run in {places}: `make run` or any notebook leaves some{skipped}"
