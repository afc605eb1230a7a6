"""The table of the contenders: a row for each thing looked at and each contender, who is first, and what is bad."""

import statistics

from .peers_visit import CAN, COUNTS, FIRST, LATER, ROWS, SECONDS

BAD_OURS, GOOD_PEERS = "bad rows of {ours}", "peers without a bad row"


def name(row, contender):
    return f"{row}: {contender}"


def summary(samples):
    """As measure.summary, also of fewer samples: a failure is planted three times, and its times differ little."""
    values = sorted(samples)
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return {"median": middle, "q1": low, "q3": high, "min": values[0], "max": values[-1], "n": len(values)}


def rows(findings) -> dict:
    """{name of the row: summary}, of {contender: findings of all its visits}; see peers_visit for a finding.

    Rows of another unit than seconds say so in "unit"; those where a reader is let down have words in "bad".
    """
    return {name(row, who): _row(row, found) for row in ROWS for who, found in findings.items()}


def _row(row, found):
    found = [finding for finding in found if finding["row"] == row]
    if not found:
        return {"median": None, "n": 0, "bad": "never came that far"}
    made = summary([finding["sample"] for finding in found])
    if row in COUNTS:
        made["unit"] = "processes"
    if row in CAN:  # not the median: what works most of the time is not what one wants
        made = {"median": statistics.mean(finding["sample"] for finding in found), "n": len(found), "unit": "of 1"}
    words = [finding["bad"] for finding in found if "bad" in finding]
    if words:
        made["bad"] = f"{'; '.join(dict.fromkeys(words))} ({len(words)} of {len(found)})"
    return made


def contenders(rows):
    """Names of those that were measured, in their order."""
    of_first = [(what.partition(": ")[2], row) for what, row in rows.items() if what.startswith(f"{FIRST}: ")]
    return [who for who, row in of_first if "left_out" not in row]


def bad(rows, who):
    """{row: words} of one contender."""
    found = {row: rows[name(row, who)].get("bad") for row in ROWS}
    return {row: words for row, words in found.items() if words}


def first(rows, row, among):
    """(seconds, contender) of the quickest of `among` that is not bad in this row; None without any."""
    good = [(rows[name(row, who)]["median"], who) for who in among if "bad" not in rows[name(row, who)]]
    return min(good, default=None)


def ratios(rows, ours, fresh=()) -> dict:
    """How `ours` stands beside the best of the others, in each row of seconds; and how many rows are bad.

    Args:
        fresh: contenders whose later launches start fresh processes, which are compared among themselves as well.
    """
    peers = [who for who in contenders(rows) if who != ours]
    made = {}
    for row, among, what in _comparisons(peers, fresh):
        best, own = first(rows, row, among), rows[name(row, ours)]["median"]
        if best is not None and own is not None:
            made[what] = own / best[0]
    made[BAD_OURS.format(ours=ours)] = len(bad(rows, ours))
    made[GOOD_PEERS] = sum(not bad(rows, who) for who in peers)
    return made


def _comparisons(peers, fresh):
    """(row, contenders to compare with, name of the ratio)"""
    yield from ((row, peers, ratio(row)) for row in SECONDS)
    yield LATER, [who for who in peers if who in fresh], ratio(f"{LATER} in fresh processes")


def ratio(row):
    return f"{row}, ours / best peer"


def reasons(rows, ratios, targets, ours, later, fresh) -> dict:
    """Why targets are missed; `later` says of each contender what a later launch of it is."""
    peers = [who for who in contenders(rows) if who != ours]
    told = {}
    for row, among, what in _comparisons(peers, fresh):
        if what in targets and ratios.get(what, 0) > targets[what][1]:
            seconds, who = first(rows, row, among)
            own = rows[name(row, ours)]
            words = f"{who} takes {seconds:.2g} s, {ours} {own['median']:.2g} s"
            if row == LATER and who not in fresh:
                words += f": {who} runs {later[who]}, which keep what the run before left in them"
            elif "bad" in own:
                words += f": {own['bad']}"
            others = bad(rows, who)
            told[what] = words + (f"; {who} is bad in {len(others)} other rows" if others else "")
    what = BAD_OURS.format(ours=ours)
    if ratios.get(what):
        told[what] = "; ".join(f"{row}: {words}" for row, words in bad(rows, ours).items())
    if ratios.get(GOOD_PEERS):
        told[GOOD_PEERS] = ", ".join(who for who in peers if not bad(rows, who))
    return told


def as_text(rows) -> list:
    """Lines of a table with a line a row and a column a contender; "!" where a reader is let down."""
    who = contenders(rows)
    yield " " * 26 + "".join(f"{each[:12]:>13}" for each in who)
    for row in ROWS:
        cells = [rows[name(row, each)] for each in who]
        told = [("–" if c["median"] is None else f"{c['median']:.3g}") + "!" * ("bad" in c) for c in cells]
        yield f"{row:<26}" + "".join(f"{cell:>13}" for cell in told)
