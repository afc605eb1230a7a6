"""The report of all runs as text, for a terminal."""

import textwrap

from ..plots.style import clean

COLUMNS = 100


def text(made, ladders=None) -> str:
    """Machines, their newest `ladders` (None: all), and the sentences of each with the first record behind it."""
    told = [summary(made)]
    for site in made.sites:
        told += ["", site.name, "=" * len(site.name)]
        for ladder, said in made.of(site, ladders):
            told += ["", f"{clean(ladder.name)}: {ladder.what}, {count(ladder.runs)}", *lines(said)]
    if made.between:
        told += ["", "Machines side by side", "=" * len("Machines side by side"), *lines(made.between)]
    return "\n".join(told)


def lines(said) -> list:
    """Lines of the sentences, each with the first record behind it."""
    made = []
    for sentence in said:
        more = f" +{len(sentence.runs) - 1}" if len(sentence.runs) > 1 else ""
        backed = f"{sentence.text} [{clean(sentence.runs[0], 60)}{more}]"
        made += textwrap.wrap(backed, COLUMNS, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
    return made


def summary(made) -> str:
    """What was read, in a sentence or two."""
    machines = f"{len(made.sites)} machine{'s' * (len(made.sites) != 1)}"
    told = f"{count(made.records)} of {machines}"
    ended = [record["status"] for record in made.records if record["status"] != "completed"]
    if ended:
        told += f", {len(ended)} of them not completed"
    skipped = [f"{clean(file, 100)} ({clean(why, 200)})" for file, why in made.found.skipped]
    return told + "." + (f" Skipped, since it is no record: {'; '.join(skipped)}." if skipped else "")


def count(records) -> str:
    """Such as "2 runs"."""
    return f"{len(records)} run{'s' * (len(records) != 1)}"
