"""What a kernel and its fork server hold, seen from outside (Linux)."""

import os
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil

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

    `roles` maps process ids to what they are called: the kernel, and its fork server.
    `temporary` is the folder that TMPDIR names for them, `shared` what /dev/shm held before.
    """

    mark: str
    roles: dict
    temporary: Path
    shared: frozenset


def family(mark) -> list:
    """Ids of the processes that carry `mark` and run, oldest first; wherever init or others have put them."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append((process.create_time(), process.pid))
        except (psutil.Error, OSError):  # gone meanwhile, or somebody else's
            continue
    return [pid for _, pid in sorted(found)]


def parent(pid):
    """The id of the process's parent, or None."""
    try:
        return psutil.Process(pid).ppid()
    except psutil.Error:
        return None


def children(pid) -> list:
    """Ids of the children of a process, oldest first."""
    try:
        return [child.pid for child in sorted(psutil.Process(pid).children(), key=lambda child: child.create_time())]
    except psutil.Error:
        return []


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
            held[f"{role} thread"] = psutil.Process(pid).num_threads()
            held.update({f"{role} descriptor ({k})": n for k, n in descriptors(pid).items()})
        except (psutil.Error, OSError):
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
        text = " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return "gone"
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
    strangers = set(psutil.pids()) - set(family(mark))
    mapped = set().union(*map(_mapped, strangers))
    theirs = {what for what in names if str(SHARED / what.removeprefix("shared memory ")) in mapped}
    return Counter({what: count for what, count in held.items() if what not in theirs})


def _mapped(pid):
    try:
        return {region.path for region in psutil.Process(pid).memory_maps()}
    except (psutil.Error, OSError):
        return set()


def memory(place) -> dict:
    """Bytes of {"kernel": {"resident": …, "anonymous": …}, "fork server": …}.

    Resident memory counts each mapped page in full, whoever else has it mapped, so other processes of the machine do
    not change it. Anonymous memory leaves out mapped files, such as the code of libraries, and shared memory.
    """
    sums = {}
    for pid, role in place.roles.items():
        found = psutil.Process(pid).memory_info()
        sums.setdefault(role, Counter()).update(resident=found.rss, anonymous=found.rss - found.shared)
    return {role: dict(values) for role, values in sums.items()}
