"""One report: records read, sorted and put into words, for a terminal, a notebook or as files."""

import textwrap
from pathlib import Path

from .. import plots
from ..language import _, shown
from ..paths import replace_file
from ..plots import style
from ..plots.style import clean
from ..records import read, seeds
from ..records.read import Found
from . import export, figures, ladders, page, sentences

TARGET = 0.9  # accuracy; stated before anything is read, since one can be found that flatters any run
COLUMNS = 100  # of a terminal


class Report:
    """What was found in records.

    Attributes:
        found: records and skipped files.
        target: the accuracy whose time is reported, a share of one.
        machines: where the records are from, with their ladders; the first has the newest record.
    """

    def __init__(self, found, target=TARGET):
        self.found, self.target = found, float(target)
        self.machines = ladders.machines(found.records)

    @property
    def records(self) -> list:
        """The records as they are on disk, each with its "file"."""
        return self.found.records

    def sentences(self, ladder) -> list:
        """The sentences (text, ids of the records that back it) about one of the ladders."""
        machine = next(each for each in self.machines if any(one is ladder for one in each.ladders))
        others = [record for one in reversed(machine.ladders) if one is not ladder for record in one.records]
        return sentences.of_ladder(ladder, others + ladder.records)

    def figures(self, ladder) -> list:
        """The figures of a ladder, (figure, alt) each."""
        return figures.of_ladder(ladder, self.target)

    def write(self, folder) -> dict:
        """Write all_runs.html (one page that opens offline), .csv and .json; returns the paths by format.

        Each file is replaced in one step.

        Raises:
            ValueError: there is no record.
        """
        self._check_records()
        rows = export.numbers(self)
        return _replace(
            folder,
            html=("all_runs.html", page.page_of(self)),
            csv=("all_runs.csv", export.table(rows)),
            json=("all_runs.json", export.json_of(self, rows)),
        )

    def write_ladder(self, folder) -> dict:
        """Write report.html, and speedup.svg, speedup.png and table.csv of the newest ladder; returns the paths.

        Raises:
            ValueError: the ladder has no run that the others could be compared with, or there is no record.
        """
        self._check_records()
        ladder = self.machines[0].ladders[0]
        if not ladder.comparison:
            raise ValueError(f"{ladder.name} has no completed run that the others could be compared with")
        drawn, alt = plots.speed_up(ladder.comparison)
        return _replace(
            folder,
            report=("report.html", page.page_of(self)),
            plot=("speedup.svg", style.svg(drawn, alt)),
            picture=("speedup.png", style.png(drawn)),
            table=("table.csv", export.table(ladder.rows())),
        )

    def show(self, ladder=None) -> None:
        """Print the sentences about a ladder (None: the newest), each with the records behind it."""
        self._check_records()
        print("\n".join(lines(self.sentences(ladder or self.machines[0].ladders[0]))))

    def summary(self) -> str:
        """What was read, in a sentence or two."""
        told = _("{runs} records of {n} machine(s).").format(runs=len(self.records), n=len(self.machines))
        skipped = [f"{clean(file, 100)} ({clean(shown(why), 200)})" for file, why in self.found.skipped]
        if skipped:
            told = _("{told} Skipped, since it is no record: {files}.").format(told=told, files="; ".join(skipped))
        return told

    def text(self, newest=None) -> str:
        """Tables and sentences of all ladders, or the `newest` of each machine, for a terminal."""
        import pandas

        told = [self.summary()]
        for machine in self.machines:
            told += ["", machine.name, "=" * len(machine.name)]
            for ladder in machine.ladders[:newest]:
                told += ["", f"{ladder.name}: {ladder.what}", ""]
                if ladder.comparison:
                    table = plots.table(ladder.comparison)
                    table = table.loc[:, (table != "–").any()]
                    with pandas.option_context("display.unicode.east_asian_width", True):
                        told += [table.to_string(index=False, line_width=COLUMNS), ""]
                told += lines(self.sentences(ladder))
        return "\n".join(told)

    __repr__ = __str__ = text

    def _check_records(self):
        if not self.records:
            places = ", ".join(str(place) for place in self.found.places)
            skipped = "".join(f"\n  {file}: {why}" for file, why in self.found.skipped[:10])
            raise ValueError(f"no record of a run in {places}: `make run` or any notebook leaves some{skipped}")


def lines(said) -> list:
    """Lines of the sentences, each with the first record behind it."""
    found = []
    for sentence in said:
        more = f" +{len(sentence.runs) - 1}" if len(sentence.runs) > 1 else ""
        text = f"{sentence.text} [{clean(sentence.runs[0], 60)}{more}]"
        found += textwrap.wrap(text, COLUMNS, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
    return found


def _replace(folder, **files):
    """Write files, kind=(name, content), to a folder, each in one step; returns {kind: path}."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = {kind: folder / name for kind, (name, _content) in files.items()}
    for kind, (_name, content) in files.items():
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
    return Report(Found([{**record, "file": f"{record['run_id']}.json"} for record in comparison.runs]))
