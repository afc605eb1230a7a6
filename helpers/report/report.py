"""One report: records read, sorted and put into words, for a terminal, a notebook or as files."""

import textwrap
from pathlib import Path

from .. import plots
from ..language import _
from ..paths import replace_file
from ..plots.style import clean
from ..records import read
from . import export, figures, ladders, page, sentences

TARGET = 0.9  # accuracy; stated before anything is read, since one can be found that flatters any run
COLUMNS = 100  # of a terminal


class Report:
    """What was found in records.

    Attributes:
        found: what was read; records: those in it, as they are on disk, each with its "file".
        target: the accuracy whose time is reported, a share of one.
        machines: where the records are from, with their ladders; the first has the newest record.
    """

    def __init__(self, found, target=TARGET):
        self.found, self.target, self.records = found, float(target), found.records
        self.machines = ladders.machines(found.records)

    @property
    def ladders(self) -> list:
        """(machine, one of its ladders), all of them."""
        return [(machine, ladder) for machine in self.machines for ladder in machine.ladders]

    def sentences(self, ladder) -> list:
        """The sentences (text, ids of the records that back it) about one of the ladders."""
        machine = next(machine for machine, one in self.ladders if one is ladder)
        others = [record for one in reversed(machine.ladders) if one is not ladder for record in one.records]
        return sentences.of_ladder(ladder, others + ladder.records)

    def figures(self, ladder) -> list:
        """The figures of a ladder, (figure, alt) each."""
        return figures.of_ladder(ladder, self.target)

    def write(self, folder) -> dict:
        """Write all_runs.html (one page that opens offline), .csv and .json, each in one step; returns the paths.

        Raises:
            ValueError: there is no record.
        """
        if not self.records:
            places = ", ".join(str(place) for place in self.found.places)
            skipped = "".join(f"\n  {file}: {why}" for file, why in self.found.skipped[:10])
            raise ValueError(f"no record of a run in {places}: `make run` or any notebook leaves some{skipped}")
        rows = export.numbers(self)
        contents = {"html": page.page_of(self), "csv": export.table(rows), "json": export.json_of(self, rows)}
        return _write({kind: Path(folder, f"all_runs.{kind}") for kind in contents}, contents)

    def write_ladder(self, folder, made) -> dict:
        """Write report.html, and speedup.svg, speedup.png and table.csv of a Comparison; returns the paths."""
        drawn, alt = plots.speed_up(made)
        contents = {"report.html": page.page_of(self), "table.csv": export.table(made.rows())}
        contents |= {"speedup.svg": plots.style.svg(drawn, alt), "speedup.png": plots.style.png(drawn)}
        return _write({name: folder / name for name in contents}, contents)

    def show(self, ladder) -> None:
        """Print the sentences about a ladder, each with the records behind it."""
        print("\n".join(_lines(self.sentences(ladder))))

    def summary(self) -> str:
        """What was read, in a sentence or two."""
        told = _("{runs} records of {n} machine(s).").format(runs=len(self.records), n=len(self.machines))
        skipped = [f"{clean(file, 100)} ({clean(why, 200)})" for file, why in self.found.skipped]
        if skipped:
            told = _("{told} Skipped, since it is no record: {files}.").format(told=told, files="; ".join(skipped))
        return told

    def text(self) -> str:
        """Table and sentences of each machine's newest ladder, for a terminal."""
        import pandas

        told = [self.summary()]
        for machine in self.machines:
            ladder = machine.ladders[0]
            told += ["", machine.name, "=" * len(machine.name), "", f"{ladder.name}: {ladder.what}", ""]
            if ladder.comparison:
                table = plots.table(ladder.comparison)
                table = table.loc[:, (table != "–").any()]
                with pandas.option_context("display.unicode.east_asian_width", True):
                    told += [table.to_string(index=False, line_width=COLUMNS), ""]
            told += _lines(self.sentences(ladder))
        return "\n".join(told)

    __repr__ = __str__ = text


def _write(paths, contents):
    """Write each content to its path; returns the paths. Raises the first OSError when all others are written."""
    failed = []
    for name, path in paths.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, contents[name])
        except OSError as error:
            failed.append(error)
    if failed:
        raise failed[0]
    return paths


def _lines(said):
    """Lines of the sentences, each with the first record behind it."""
    found = []
    for text, runs in said:
        more = f" +{len(runs) - 1}" if len(runs) > 1 else ""
        text = f"{text} [{clean(runs[0], 60)}{more}]"
        found += textwrap.wrap(text, COLUMNS, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
    return found


def everything(*places, target=TARGET, runs=()) -> Report:
    """The report of all records in the given folders and files, or on this machine.

    Args:
        target: the accuracy whose time is reported, a share of one.
        runs: records of this machine that may not have been written.

    Raises:
        FileNotFoundError: a folder or file is not there.
        ValueError: `target` is no share of one.
    """
    plots.seeds.check_target(target)
    found = read.read(*places)
    known = {record["run_id"] for record in found.records}
    found.records += [{**run, "file": _("not written")} for run in runs if run["run_id"] not in known]
    return Report(found, target)
