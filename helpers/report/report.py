"""One report: records read, sorted and put into words, for a terminal, a notebook or as files."""

from functools import cached_property
from pathlib import Path

from .. import plots
from ..paths import replace_file
from ..plots import style
from ..records import read, seeds
from ..records.read import Found
from . import figures, ladders, sentences
from .sentences import TARGET


class Report:
    """What was found in records. Sentences are made when they are first asked for, and then kept.

    Attributes:
        found: records and skipped files.
        target: the accuracy whose time is reported, a share of one.
        sites: machines with their ladders; the first has the newest record.
    """

    def __init__(self, found, target=TARGET):
        self.found, self.target = found, float(target)
        self.sites = ladders.sites(found.records)
        self._said = {}

    @property
    def records(self) -> list:
        """The records as they are on disk, each with its "file"."""
        return self.found.records

    def sentences(self, ladder) -> list:
        """The sentences (text, ids of the records that back it) about one of the ladders."""
        if id(ladder) not in self._said:
            site = next(site for site in self.sites if any(one is ladder for one in site.ladders))
            others = [record for one in reversed(site.ladders) if one is not ladder for record in one.records]
            self._said[id(ladder)] = sentences.of_ladder(ladder, others + ladder.records, self.target)
        return self._said[id(ladder)]

    @cached_property
    def between(self) -> list:
        """Sentences that compare machines."""
        return sentences.between(self.sites)

    def figures(self, ladder) -> list:
        """The figures of a ladder, (figure, alt) each."""
        return figures.of_ladder(ladder, self.target)

    def write(self, folder) -> dict:
        """Write all_runs.html (one page that opens offline), .csv and .json; returns the paths by format.

        Each file is replaced in one step.

        Raises:
            ValueError: there is no record.
        """
        from . import export, page

        self._check_records()
        return _replace(
            folder,
            {
                "html": ("all_runs.html", page.page_of(self)),
                "csv": ("all_runs.csv", export.table(export.numbers(self))),
                "json": ("all_runs.json", export.json_of(self)),
            },
        )

    def write_ladder(self, folder) -> dict:
        """Write report.html, and speedup.svg, speedup.png and table.csv of the newest ladder; returns the paths.

        Raises:
            ValueError: the ladder has no run that the others could be compared with, or there is no record.
        """
        from . import export, page

        self._check_records()
        ladder = self.sites[0].ladders[0]
        if not ladder.comparison:
            raise ValueError(f"{ladder.name} has no completed run that the others could be compared with")
        drawn, alt = plots.speed_up(ladder.comparison)
        return _replace(
            folder,
            {
                "report": ("report.html", page.page_of(self)),
                "plot": ("speedup.svg", style.svg(drawn, alt)),
                "picture": ("speedup.png", style.png(drawn)),
                "table": ("table.csv", export.table(ladder.rows())),
            },
        )

    def show(self, ladder=None) -> None:
        """In a notebook: the sentences about a ladder (None: the newest), with links to its records below them."""
        from . import page

        self._check_records()
        page.show(self, ladder or self.sites[0].ladders[0])

    def text(self, newest=None) -> str:
        """Tables and sentences of all ladders, or the `newest` of each machine, for a terminal."""
        from . import text

        return text.text(self, newest)

    __repr__ = __str__ = text

    def _check_records(self):
        if not self.records:
            places = ", ".join(str(place) for place in self.found.places)
            skipped = "".join(f"\n  {file}: {why}" for file, why in self.found.skipped[:10])
            raise ValueError(f"no record of a run in {places}: `make run` or any notebook leaves some{skipped}")


def _replace(folder, files):
    """Write {kind: (name, content)} to a folder, each file in one step; returns {kind: path}."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = {kind: folder / name for kind, (name, _) in files.items()}
    for kind, (_, content) in files.items():
        replace_file(paths[kind], content)
    return paths


def everything(*places, target=TARGET) -> Report:
    """The report of all records in the given folders and files, or on this machine.

    Args:
        target: the accuracy whose time is reported, a share of one.

    Raises:
        FileNotFoundError: a folder or file is not there.
        ValueError: `target` is no share of one.
    """
    seeds.check_target(target)
    return Report(read.read(*places), target)


def of(comparison) -> Report:
    """The report of one comparison."""
    records = [{**read.checked(record), "file": f"{record['run_id']}.json"} for record in comparison.runs]
    return Report(Found(records))
