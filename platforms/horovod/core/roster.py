"""Which ranks belong to a job whose ranks may come and go: a file that the starter writes and the ranks read.

Each change is a version: the launcher's numbers of its members. Version 1 are the ranks of the start. A rank that was
started later says that it is ready to join; from then on it is in a version. The ranks that run agree on a version in
`State.check_host_updates`, so that all of them meet by the same list. Files stand in a folder of the starter's own.
"""

import json
import os
import threading
import time
from pathlib import Path

VARIABLE = "HELPERS_HVD_ROSTER"  # the folder
LOOK = 0.25  # seconds between two looks at the file

chosen = 1  # the version by which this rank has met the others


def folder():
    """The folder of this job's roster, or None where ranks cannot come and go."""
    return Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None


def versions(where=None) -> dict:
    """{version: [numbers]}, from 1 on."""
    try:
        found = json.loads((where or folder()).joinpath("versions").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return {int(version): members for version, members in found.items()}


def publish(where, members) -> int:
    """Add a version with these `members`; returns its number."""
    known = versions(where)
    known[len(known) + 1] = sorted(members)
    draft = where / "draft"
    draft.write_text(json.dumps(known), encoding="utf-8")
    os.replace(draft, where / "versions")
    return len(known)


def choose(version) -> bool:
    """Meet by this version from now on; False if it is none (a script may call `on_hosts_updated` itself)."""
    global chosen
    if folder() is None or version not in versions():
        return False
    chosen = version
    return True


def join(number) -> list:
    """Say that rank `number` is ready, wait until it is in a version; the members of that."""
    global chosen
    folder().joinpath(f"ready-{number}").touch()
    while not (within := [version for version, members in versions().items() if number in members]):
        time.sleep(LOOK)
    chosen = within[-1]
    return versions()[chosen]


def joined(number):
    """Note that this rank has met the others."""
    if folder() is not None:
        folder().joinpath(f"in-{number}").touch()


def listen(tell):
    """Call `tell(version, added, removed)` from another thread when there is a new version; returns what ends that."""
    if folder() is None:
        return lambda: None
    over = threading.Event()

    def watch():
        told = chosen
        while not over.wait(LOOK):
            known = versions()
            if known and max(known) > max(told, chosen):
                told = max(known)
                before, after = set(known[chosen]), set(known[told])
                tell(told, bool(after - before), bool(before - after))

    threading.Thread(target=watch, daemon=True, name="hvd-roster").start()
    return over.set
