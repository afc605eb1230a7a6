"""`python -m helpers report`: everything that was recorded, as sentences here and as files."""


def add_to(commands) -> None:
    """Add the command to the parser's `commands`."""
    about = "Read all records, here or in folders, print what they say, and write a page, a CSV and a JSON."
    sub = commands.add_parser("report", help=about, description=about, allow_abbrev=False)
    sub.set_defaults(command=run)
    place = "folder or file with records, also those of another machine (default: this machine's results)"
    sub.add_argument("places", nargs="*", metavar="PLACE", help=place)
    sub.add_argument("--out", help="folder for all_runs.html, .csv and .json (default: report, in the results folder)")
    sub.add_argument("--target", type=float, default=0.9, help="accuracy whose time is reported (default: 0.9)")


def run(options) -> None:
    """The command."""
    from ..paths import results_root
    from .report import everything

    found = everything(*options.places, target=options.target)
    print(found.text(), "", sep="\n", flush=True)
    paths = found.write(options.out or results_root() / "report")
    print(*(f"{kind}: {path}" for kind, path in paths.items()), sep="\n")
