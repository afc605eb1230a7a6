"""`python -m helpers report`: everything that was recorded, as sentences here and as files."""


def add_to(commands) -> None:
    """Add the command to the parser's `commands`."""
    about = "Read all records, of this machine or in folders, say what they say, and write a page, a CSV and a JSON."
    sub = commands.add_parser("report", help=about, description=about, allow_abbrev=False)
    sub.set_defaults(command=run)
    place = "folder or file with records, also those of another machine (default: this machine's results)"
    sub.add_argument("places", nargs="*", metavar="PLACE", help=place)
    sub.add_argument("--out", help="folder for all_runs.html, .csv and .json (default: report, in the results folder)")
    sub.add_argument("--formats", default="html,csv,json", help="those to write, with commas (default: html,csv,json)")
    sub.add_argument("--target", type=float, default=0.9, help="accuracy to tell the time to (default: 0.9)")
    sub.add_argument("--all", action="store_true", help="say what every ladder says, not only the newest")


def run(options) -> int:
    """The command; returns the exit status."""
    from pathlib import Path

    from . import report_all, report_text
    from .paths import results_root

    made = report_all.everything(*options.places, target=options.target)
    formats = [name.strip() for name in options.formats.split(",") if name.strip()]
    paths = made.write(Path(options.out) if options.out else results_root() / "report", formats)
    print(report_text.text(made, ladders=None if options.all else 1))
    print()
    for name, path in paths.items():
        print(f"{name}: {path}")
    return 0
