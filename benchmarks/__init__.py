"""Paired measurements that report ratios; run by `make bench`, never as tests.

A benchmark is a module here with a UNIT and a function `run() -> rows, ratios`:

    rows    {name: measure.summary(samples)} in UNIT; a row may have keys of its own, such as "unit" or "bad",
            words for an outcome that is not a number
    ratios  {name: number or measure.with_interval(samples)}

It may have TARGETS {name of a row or ratio: ("<=" or ">=", number)}, and two functions of rows and ratios:
`reasons` gives {name: why its target is missed}, `notes` sentences to stand below the table.
"""
