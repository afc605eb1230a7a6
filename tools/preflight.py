"""Say what this machine can and cannot do in a workshop, in a minute; JSON for the teacher.

    python -m tools.preflight                      results/preflight/<host>.json
    python -m tools.preflight --to ana.json

Exit status 1 if something is missing that every notebook needs. Nothing is installed, changed or sent.
"""

import argparse
import json
import os
import platform
import shutil
import socket
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from helpers import device, launch, paths, releases
from helpers.launcher import shortage

ROOT = Path(__file__).resolve().parent.parent
SIGNS = {"yes": "[can]   ", "partly": "[partly]", "no": "[cannot]"}
GB = 1e9
# Below these a workshop is slow or stops; docs/teaching/server.md has the numbers.
DISK, MEMORY, CORES = 2 * GB, 4 * GB, 2
PATIENCE = 120  # s for two ranks to meet, on a cold disk


@dataclass
class Finding:
    """One thing that was looked at."""

    name: str
    can: str  # a key of SIGNS
    text: str
    needed: bool = False  # by every notebook
    facts: dict = field(default_factory=dict)


def python_and_torch():
    version = platform.python_version()
    torch = releases.version_of("torch")
    facts = {"python": version, "torch": torch, "system": platform.platform()}
    if sys.platform == "win32":
        return Finding("python", "no", "Windows starts no ranks: install WSL 2 and the kit in it", True, facts)
    try:
        releases.check()
    except releases.UnfitTorch as error:
        return Finding("python", "no", str(error), True, facts)
    return Finding("python", "yes", f"Python {version}, torch {torch}, {platform.system()}", True, facts)


def cores():
    found = device.usable_cores()
    if found < CORES:
        text = "one core: ranks take turns, so times and speed-ups say nothing; everything else is true"
        return Finding("cores", "partly", text, facts={"cores": found})
    return Finding("cores", "yes", f"{found} cores", facts={"cores": found})


def memory():
    found = device.usable_memory()
    can = "yes" if found >= MEMORY else "partly"
    text = f"{found / GB:.1f} GB of memory" + ("" if can == "yes" else ": close other programs, one notebook at a time")
    return Finding("memory", can, text, facts={"bytes": found})


def disk():
    free = shutil.disk_usage(ROOT).free
    can = "yes" if free >= DISK else "partly"
    text = f"{free / GB:.1f} GB of disk are free" + ("" if can == "yes" else ": records, caches and data need 2 GB")
    return Finding("disk", can, text, facts={"free": free})


def devices():
    here = device.machine()
    facts = {"kind": here.kind, "count": here.count, "name": here.name}
    if idle := releases.idle_gpus():
        return Finding("devices", "partly", idle, facts=facts)
    if here.kind == "cpu":
        return Finding(
            "devices", "yes", f"no GPU: {here.count} CPU processes are the devices ({here.name})", facts=facts
        )
    if here.count == 1:
        text = f"one {here.name}: sections on one device use it, those on several use CPU processes"
        return Finding("devices", "partly", text, facts=facts)
    return Finding("devices", "yes", f"{here.count} × {here.name}", facts=facts)


def ranks(kind):
    """Two ranks on a kind of device add up 1 and 2."""
    backend, name = device.BACKENDS[kind], f"two ranks, {device.BACKENDS[kind]}"
    began = time.perf_counter()
    try:
        found = launch(_sum_of_ranks, 2, timeout=PATIENCE, threads=1, env={"HELPERS_DEVICE": kind})
    except Exception as error:  # whatever it is, the teacher has to see it
        text = f"two ranks do not meet by {backend}: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        return Finding(name, "no", text, kind == "cpu", {"error": str(error)})
    seconds = time.perf_counter() - began
    facts = {"seconds": round(seconds, 3), "sums": found}
    if found != [3.0, 3.0]:
        return Finding(name, "no", f"two ranks sum 1 and 2 to {found} by {backend}", kind == "cpu", facts)
    return Finding(name, "yes", f"two ranks meet by {backend}, in {seconds:.1f} s", kind == "cpu", facts)


def _sum_of_ranks():
    import torch
    import torch.distributed as dist

    from helpers import distributed

    with distributed() as world:
        number = torch.tensor(world.rank + 1.0, device=world.device)
        dist.all_reduce(number)
        return number.item()


def half_precision():
    found = device.machine().bf16
    facts = {"bf16": found, "instructions": list(device.machine().instructions)}
    if found == "native":
        return Finding("bf16", "yes", "bf16 is computed by instructions of its own (notebook 04)", facts=facts)
    text = "bf16 is emulated, many times slower than fp32: notebook 04 shows it, and recorded runs beside it"
    return Finding("bf16", "partly", text, facts=facts)


def compiler():
    wanted = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    found = next(filter(None, map(shutil.which, (wanted, "g++", "clang++"))), None)
    if found:
        return Finding(
            "compiler", "yes", "a C++ compiler: torch.compile and the emulated NPU run (06, 07)", facts={"path": found}
        )
    text = "no C++ compiler: torch.compile on CPUs and the emulated NPU do not run (06, 07); install g++"
    return Finding("compiler", "partly", text)


def ports():
    try:
        shortage.check_ports(4)
    except shortage.Shortage as error:
        return Finding("ports", "no", str(error), True)
    return Finding("ports", "yes", "free ports for four ranks", True)


def lab():
    found = releases.version_of("jupyterlab")
    if not found:
        return Finding("jupyterlab", "no", "no JupyterLab in this environment: `make lab` installs it", True)
    with socket.socket() as probe:
        taken = probe.connect_ex(("127.0.0.1", 8888)) == 0
    text = f"JupyterLab {found}" + ("; port 8888 is in use, so it will take the next one" if taken else "")
    return Finding("jupyterlab", "yes", text, True, {"version": found, "port 8888 in use": taken})


def two_hosts():
    from helpers.cluster import twohosts

    why = twohosts.why_not(delay=1)
    if why is None:
        return Finding("two hosts", "yes", "two hosts on one machine, with a slow link between them (03, 09)")
    return Finding("two hosts", "partly", f"03 and 09 show recorded links: {why}")


def look():
    """All findings; each appears as soon as it is there."""
    first = python_and_torch()
    yield first
    if first.can == "no":  # the others need torch
        return
    yield from (each() for each in (cores, memory, disk, devices, ports))
    yield ranks("cpu")
    here = device.machine()
    if here.kind != "cpu" and here.count > 1:
        yield ranks(here.kind)
    yield from (each() for each in (half_precision, compiler, lab, two_hosts))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, help="the file for the teacher (default: results/preflight/<host>.json)")
    to = parser.parse_args(arguments).to or paths.results_root() / "preflight" / f"{platform.node() or 'machine'}.json"
    findings, began = [], time.perf_counter()
    for found in look():
        findings.append(found)
        print(SIGNS[found.can], found.text, flush=True)
    missing = [found for found in findings if found.needed and found.can == "no"]
    if missing:
        print(f"\nNot ready: {len(missing)} thing(s) that every notebook needs. Show this to your teacher.")
    else:
        print("\nReady: begin with `make lab`." + _left_out(findings))
    report = {
        "host": platform.node(),
        "ready": not missing,
        "seconds": round(time.perf_counter() - began, 1),
        "findings": [asdict(found) for found in findings],
    }
    to.parent.mkdir(parents=True, exist_ok=True)
    paths.replace_file(to, json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    print(f"For the teacher: {to}")
    return 1 if missing else 0


def _left_out(findings):
    names = [found.name for found in findings if found.can != "yes"]
    return f" With less than everything: {', '.join(names)}." if names else ""


if __name__ == "__main__":
    sys.exit(main())
