"""What a kernel and its fork server hold, seen from outside through /proc (Linux)."""

import os
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

MARK = "HELPERS_SOAK"  # environment variable that a kernel hands down to all it starts
SHARED = Path("/dev/shm")
# Any process of the machine that is killed while it makes a semaphore leaves one; only those of ranks have their
# folder's name, so only those can be told from other programs'.
FOREIGN = re.compile(r"sem\.(?!helpers-)")
# ipykernel closes the pipes of threads that printed and have ended every ten seconds, not at once.
SLOW = "kernel descriptor ([eventfd])"


@dataclass(frozen=True)
class Place:
    """A kernel and what belongs to it.

    `roles` maps process ids to what they are called: the kernel, and its fork server's generations.
    `temporary` is the folder that TMPDIR names for them, `shared` what /dev/shm held before.
    """

    mark: str
    roles: dict
    temporary: Path
    shared: frozenset


def family(mark) -> list:
    """Ids of the processes that carry `mark` and run, oldest first; wherever init or others have put them."""
    wanted, found = f"{MARK}={mark}\0".encode(), []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            if wanted in Path(entry.path, "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:  # gone meanwhile, or somebody else's
            continue
    return sorted((pid for pid in found if _started(pid) is not None), key=lambda pid: (_started(pid), pid))


def _started(pid):
    """When the process started, in clock ticks; None for one that has ended."""
    words = _stat(pid)
    return int(words[19]) if words and words[0] != "Z" else None


def parent(pid):
    """The id of the process's parent, or None."""
    words = _stat(pid)
    return int(words[1]) if words else None


def children(pid) -> list:
    """Ids of the running children of a single-threaded process, oldest first."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _stat(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def descriptors(pid) -> Counter:
    """How many descriptors of each kind a process has open."""
    kinds = Counter()
    for link in os.scandir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(link.path)
        except OSError:  # that of the listing itself, say
            continue
        kinds[kind(target)] += 1
    return kinds


def kind(target) -> str:
    """The kind of descriptor whose link in /proc says `target`."""
    if match := re.match(r"(pipe|socket|anon_inode|/memfd)(?::(\[\w+\])?)?", target):
        return "memfd" if match[1] == "/memfd" else (match[2] or match[1]) if match[1] == "anon_inode" else match[1]
    return "device" if target.startswith("/dev/") else "file"


def snapshot(place) -> Counter:
    """All that is held right now: {"kernel descriptor (pipe)": 4, …}."""
    held = Counter()
    for pid, role in place.roles.items():
        try:
            held[f"{role} thread"] = len(os.listdir(f"/proc/{pid}/task"))
            held.update({f"{role} descriptor ({k})": n for k, n in descriptors(pid).items()})
        except OSError:
            held[f"{role} lost"] = 1
    for pid in set(family(place.mark)) - set(place.roles):
        held[f"process {_command(pid)}"] += 1
    for path in place.temporary.rglob("*"):
        held[f"temporary {path.relative_to(place.temporary)}"] = 1
    for name in shared() - place.shared:
        held[f"shared memory {name}"] = 1
    return held


def shared() -> frozenset:
    """The names in /dev/shm that can be the kernel's or its ranks'."""
    return frozenset(name for name in os.listdir(SHARED) if not FOREIGN.match(name))


def _command(pid):
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "gone"
    text = b" ".join(words).decode(errors="replace").strip()
    return "forked from the fork server" if "forkserver" in text else text[:60]


def more(before, after) -> list:
    """What is held in `after` and was not in `before`, in words."""
    return [f"{count} more: {what}" for what, count in sorted((after - before).items())]


def settled(place, before, seconds, slow=True) -> Counter:
    """The snapshot as soon as it holds no more than `before`, at the latest after so many seconds.

    Without `slow` it leaves out what may take longer than a launch.
    """
    end = time.monotonic() + seconds
    while True:
        now = snapshot(place)
        if not slow:
            now[SLOW] = min(now[SLOW], before[SLOW])
        if not now - before or time.monotonic() > end:
            return now
        time.sleep(0.03)


def without_strangers(held, mark) -> Counter:
    """`held` without the shared memory that a process outside the soak has mapped: it is that one's."""
    names = [what for what in held if what.startswith("shared memory ")]
    if not names:
        return held
    strangers = {int(path.name) for path in Path("/proc").glob("[0-9]*")} - set(family(mark))
    mapped = "".join(filter(None, map(_maps, strangers)))
    theirs = {what for what in names if str(SHARED / what.removeprefix("shared memory ")) in mapped}
    return Counter({what: count for what, count in held.items() if what not in theirs})


def _maps(pid):
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return None


def memory(place) -> dict:
    """Bytes of {"kernel": {"resident": …, "anonymous": …}, "fork server": …}, its generations added up.

    Resident memory counts each mapped page in full, whoever else has it mapped, so other processes
    of the machine do not change it. Anonymous memory leaves out the code of libraries.
    """
    sums = {}
    for pid, role in place.roles.items():
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        of_role = sums.setdefault(role, Counter())
        for name, line in (("resident", "Rss"), ("anonymous", "Anonymous")):
            of_role[name] += 1024 * int(re.search(rf"^{line}:\s+(\d+) kB", text, re.MULTILINE)[1])
    return {role: dict(values) for role, values in sums.items()}
