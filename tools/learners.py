"""Measure what learners on one server take: memory (PSS) of kernels, fork servers and ranks, with 1, 2 and 4 learners.

    python -m tools.learners            needs Linux; two minutes on two idle cores
    python -m tools.learners 1 2 4 8

Each learner is a kernel that imports what notebooks import, then trains resnet8 on two ranks, all at the same time.
PSS divides a page that processes share by their number, so it adds up. docs/teaching/server.md has the results.
"""

import argparse
import sys
import threading
import time
from pathlib import Path

import psutil
from jupyter_client.manager import start_new_kernel

ROOT = Path(__file__).resolve().parent.parent
SET_UP = f"""
import os, sys; sys.path.insert(0, {str(ROOT)!r})
os.environ["HELPERS_ALONE"] = "0"  # learners are users of their own, so their runs do not wait for each other
import torch, numpy, pandas, matplotlib.pyplot, helpers
from helpers.data import sets
sets.ensure("digits"); helpers.prepare_launcher()
"""
TRAIN = """
from helpers import RunConfig, run
config = RunConfig(model="resnet8", data="digits", strategy="ddp", nproc_per_node=2, steps=30, evaluate=False)
run(config, timeout=900)
"""
PATIENCE = 900  # s for a cell, on a busy machine


def pss(process) -> int:
    """Bytes of a process and all that it has started; 0 of those that have ended."""
    total = 0
    for one in (process, *process.children(recursive=True)):
        try:
            total += one.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


def measured(learners):
    """(bytes while idle, bytes at the peak, seconds of the run) of so many learners together."""
    sessions = [start_new_kernel(kernel_name="python3") for _ in range(learners)]
    try:
        processes = [psutil.Process(manager.provisioner.pid) for manager, _ in sessions]
        _all_run(sessions, SET_UP)
        idle = sum(map(pss, processes))
        done, peak, began = threading.Event(), idle, time.perf_counter()
        running = threading.Thread(target=lambda: (_all_run(sessions, TRAIN), done.set()))
        running.start()
        while not done.wait(0.3):
            peak = max(peak, sum(map(pss, processes)))
            if not running.is_alive() and not done.is_set():
                raise RuntimeError("a learner's run has failed; its error is above")
        return idle, peak, time.perf_counter() - began
    finally:
        for manager, client in sessions:
            client.stop_channels()
            manager.shutdown_kernel(now=True)


def _all_run(sessions, code):
    """Run a cell in all kernels at the same time."""
    messages = [(client, client.execute(code)) for _, client in sessions]
    for client, message in messages:
        reply = {}
        while reply.get("parent_header", {}).get("msg_id") != message:
            reply = client.get_shell_msg(timeout=PATIENCE)
        if reply["content"]["status"] != "ok":
            raise RuntimeError(f"a learner's cell has failed: {reply['content'].get('evalue')}")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("learners", nargs="*", type=int, default=[1, 2, 4])
    print(f"{'learners':>8}{'idle (GB)':>11}{'peak (GB)':>11}{'peak each (GB)':>16}{'run (s)':>9}")
    for n in parser.parse_args(arguments).learners:
        idle, peak, seconds = measured(n)
        print(f"{n:8}{idle / 1e9:11.2f}{peak / 1e9:11.2f}{peak / n / 1e9:16.2f}{seconds:9.1f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
