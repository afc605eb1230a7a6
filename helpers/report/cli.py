"""`python -m helpers report`: everything that was recorded, as sentences here and as files."""


def add_to(commands) -> None:
    """Add the command to the parser's `commands`."""
    about = "Read all records, of this machine or in folders, say what they say, and write a page, a CSV and a JSON."
    sub = commands.add_parser("report", help=about, description=about, allow_abbrev=False)
    sub.set_defaults(command=run)
    place = "folder or file with records, also those of another machine (default: this machine's results)"
    sub.add_argument("places", nargs="*", metavar="PLACE", help=place)
    sub.add_argument("--out", help="folder for all_runs.html, .csv and .json (default: report, in the results folder)")
    every = "those to write, with commas (default: html,csv,json; of very many records html)"
    sub.add_argument("--formats", help=every)
    sub.add_argument("--target", type=float, default=0.9, help="accuracy to tell the time to (default: 0.9)")
    sub.add_argument("--all", action="store_true", help="say what every ladder says, not only the newest")


def run(options) -> int:
    """The command; returns the exit status."""
    import gc

    was_on = gc.isenabled()
    gc.disable()  # it would look through all records time and again, none of which is garbage
    try:
        return _report(options)
    finally:
        if was_on:
            gc.enable()


def _report(options):
    from pathlib import Path

    from ..paths import results_root
    from . import everything, page, text

    made = everything.everything(*options.places, target=options.target)
    many = len(made.records) > page.WHOLE
    asked = options.formats if options.formats is not None else "html" if many else "html,csv,json"
    formats = [name.strip() for name in asked.split(",") if name.strip()]
    paths = made.write(Path(options.out) if options.out else results_root() / "report", formats)
    print(text.text(made, ladders=None if options.all else 1))
    print()
    for name, path in paths.items():
        print(f"{name}: {path}")
    if many and options.formats is None:
        print("csv, json: not written, since all records have to be read for them; --formats csv,json does it")
    return 0
