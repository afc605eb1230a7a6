"""What the soaked kernel runs. The text of this file is its first cell, so `work` is a function from a cell."""

import ctypes
import gc
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import torch
import torch.distributed as dist

import helpers

LATE = 10.0  # s to wait for an interrupt that comes after the launch has ended
driver = None  # the line to the process that drives this kernel
keep = []  # what planted leaks hold


class Planted(Exception):
    """The failure that a plan asks for."""


# -- on the ranks ------------------------------------------------------------------------------


def planted_hang():
    helpers.emit("hanging")
    time.sleep(60)


def die(plan):
    """End as planned; a rank that something else has to end only waits."""
    time.sleep(plan["delay"])
    how = plan["how"] if plan["kind"] == "collective" else plan["kind"]
    if how == "exception":
        raise Planted(f"planted in launch {plan['number']}")
    if how == "exit":
        os._exit(plan["code"])
    os.kill(os.getpid(), signal.SIGKILL)


def misbehave(plan):
    if plan["kind"] == "hang":
        planted_hang()
    elif plan["kind"] in ("sigkill", "interrupt", "stop"):
        time.sleep(plan["linger"])  # ended from outside
    else:
        die(plan)


def reduce_until_lost(plan, bad):
    """Reduce without end, so that the bad rank dies while the others are in a collective."""
    if bad and plan["how"] != "exception":
        threading.Thread(target=die, args=(plan,), daemon=True).start()
    end = time.monotonic() + plan["delay"]
    while True:
        if bad and plan["how"] == "exception" and time.monotonic() > end:
            raise Planted(f"planted in launch {plan['number']}")
        dist.all_reduce(torch.ones(1000))


def in_group(plan, bad):
    with helpers.distributed("cpu") as world:
        total = torch.tensor([float(world.rank + 1)])
        if plan["kind"] == "collective":
            dist.barrier()
            reduce_until_lost(plan, bad)
        if bad:
            misbehave(plan)
        dist.all_reduce(total)
        return total.item()


def work(plan):
    """What each rank does: [its rank, the sum over the group or None, the launch's number]."""
    rank = int(os.environ["RANK"])
    bad = rank == plan["rank"]
    if plan["extra"] == "loader":
        loader = iter(torch.utils.data.DataLoader(torch.arange(8.0), num_workers=1))
        next(loader)
    if plan["extra"] == "chatty":
        for line in range(300):
            print("line", line)
    total = in_group(plan, bad) if plan["group"] else None
    if bad and not plan["group"]:
        misbehave(plan)
    helpers.emit("leaving")
    return [rank, total, plan["number"], torch.full((300_000 if plan["extra"] == "large" else 1,), float(rank))]


# -- in the kernel -----------------------------------------------------------------------------


def connect(path):
    global driver
    driver = socket.socket(socket.AF_UNIX)
    driver.connect(path)


def tell(**message):
    driver.sendall(json.dumps(message).encode() + b"\n")


def perform(plan, plants=()):
    """One launch as planned; what came of it goes to the driver."""
    outcome, events, began = {"value": None, "error": None, "events": []}, [], time.monotonic()

    def on_event(event):
        events.append((time.monotonic(), event["event"], event["rank"]))

    try:
        how = in_persistent if plan["kind"] == "persistent" else in_background if plan["background"] else in_foreground
        how(plan, outcome, on_event)
        if plan["kind"] == "interrupt":
            outcome["late"] = True
            time.sleep(LATE)  # it comes in here, and nowhere in the harness
    except BaseException as error:
        outcome.update(
            error=type(error).__name__,
            rank=getattr(error, "rank", None),
            message=str(error),
            exitcode=getattr(error, "exitcode", None),
            stacks=getattr(error, "stacks", None),
        )
    ended = outcome["ended"] = time.monotonic()
    # Until a timeout at the earliest: then stacks are collected, and a rank that is late may come on meanwhile.
    until = min(ended, began + (plan["timeout"] or float("inf")))
    outcome["events"] = [(name, rank, until - when) for when, name, rank in events]
    for plant in plants:
        sabotage(plant, outcome)
    if plan["read"]:
        tidy()
    tell(outcome=outcome)


def tidy():
    """Give back what is free, or it would be counted as used: how much malloc keeps of it varies by tens of MB."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


def in_foreground(plan, outcome, on_event):
    tell(go=plan["number"])
    answers = helpers.launch(work, plan["ranks"], plan, timeout=plan["timeout"], on_event=on_event)
    outcome["value"] = checked(answers)


def in_background(plan, outcome, on_event):
    run = helpers.launch(work, plan["ranks"], plan, timeout=plan["timeout"], on_event=on_event, background=True)
    behind = [{**plan, "kind": "healthy", "rank": None, "extra": "", "ranks": 1 + k} for k in range(plan["queued"])]
    queue = [helpers.launch(work, other["ranks"], other, background=True) for other in behind]
    try:
        tell(go=plan["number"])
        if plan["kind"] == "stop":
            time.sleep(plan["delay"])
            timed_stop(run, outcome)
        if queue:
            timed_stop(queue.pop(), outcome)
        outcome["value"] = checked(run.result())
    finally:
        timed_stop(run, outcome)  # an interrupt ends the waiting, not the run
        outcome["status"] = run.status
        outcome["queued"] = [checked(other.result()) for other in queue]


def in_persistent(plan, outcome, on_event):
    """Persistent ranks: a call that fails as planned, and a healthy one after it, if the ranks survive that."""
    healthy, failing = {**plan, "kind": "healthy", "rank": None}, {**plan, "kind": plan["how"]}
    timeout = plan["timeout"] if plan["how"] == "hang" else None
    with helpers.ranks(plan["ranks"], env={"HELPERS_DEVICE": "cpu"}, on_event=on_event) as ranks:
        pids = ranks(os.getpid)
        tell(go=plan["number"])
        try:
            ranks(work, failing, timeout=timeout)
            if plan["how"] == "interrupt":
                outcome["late"] = True
                time.sleep(LATE)
        except (helpers.RankError, KeyboardInterrupt) as error:
            outcome.update(caught=type(error).__name__, blamed=getattr(error, "rank", None), said=str(error))
        outcome["caught_at"] = time.monotonic()
        if plan["how"] == "sigkill":
            ranks(os.getpid)  # refused
        outcome["value"] = checked(ranks(work, healthy))
        outcome["same"] = ranks(os.getpid) == pids


def timed_stop(run, outcome):
    began = time.monotonic()
    run.stop()
    outcome["stop_s"] = max(outcome.get("stop_s", 0.0), time.monotonic() - began)


def checked(answers):
    """The answers of all ranks without their tensors, which only have to be right."""
    return [[*words, bool((tensor == words[0]).all())] for *words, tensor in answers]


# -- mistakes that the tests plant, to see that they are found --------------------------------------


def sabotage(plant, outcome):
    if plant == "descriptor":
        keep.append(os.pipe())
    elif plant == "thread":
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    elif plant == "process":
        keep.append(subprocess.Popen(["sleep", "600"]))
    elif plant == "orphan":  # not below the kernel any more
        subprocess.run(["sh", "-c", "sleep 600 > /dev/null 2>&1 &"], start_new_session=True)
    elif plant == "file":
        keep.append(tempfile.mkdtemp())
    elif plant == "shared memory":
        with open(f"/dev/shm/soak-{os.environ['HELPERS_SOAK']}", "wb+") as file:  # mapped, so that it is ours alone
            file.truncate(1)
            keep.append(mmap.mmap(file.fileno(), 1))
    elif plant == "memory":
        keep.append(bytearray(b"x" * (64 << 20)))
    elif plant == "server":  # a run that nobody closes, with no ranks
        from helpers.launcher import client, engine, shared_message, supervisor

        message = shared_message.SharedMessage(None, before=b"")
        keep.append(supervisor.Supervisor(engine.ForkServerEngine(client.server()), 0, message))
        message.close()
    elif plant == "rank":
        outcome["rank"] = None if outcome["rank"] is None else outcome["rank"] + 1
    elif plant == "value":
        outcome["value"] = outcome["value"] and outcome["value"][::-1] + [0]
    else:
        sys.exit(f"nothing is known of {plant!r}")
