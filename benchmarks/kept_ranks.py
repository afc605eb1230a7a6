"""Ranks that stay, from a plain script: how long does a call take, and how quickly do large values travel?

A value is one tensor of SIZE bytes. It is copied once, into memory that its reader maps, so each transfer is measured
in turn with `clone()` of the same tensor in the same process, which is one copy into new memory, too. Whoever gets a
tensor reads it once: its sum belongs to the time.
"""

import time

import torch

import helpers
from helpers import measure

from . import turns

UNIT = "GB/s"
SIZE = 64 << 20  # bytes
CALLS, ROUNDS = 200, 15
ARGUMENT, RESULT, CLONE = "large argument, 2 ranks", "large result, 1 rank", "clone() in the script"
BY_CLONE = "{} / clone()".format
CALL = "call of {} ranks".format
TARGETS = {CALL(2): ("<=", 5), CALL(8): ("<=", 10), ARGUMENT: (">=", 1), RESULT: (">=", 1)}


def nothing():
    pass


def hold(count):
    helpers.ranks.state.held = torch.ones(count)


def held():
    return helpers.ranks.state.held


def total(tensor):
    return tensor.sum().item()


def seconds(work):
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def run(calls=CALLS, rounds=ROUNDS, size=SIZE):
    environment, rows = {"HELPERS_DEVICE": "cpu"}, {}
    for number in (2, 8):
        with helpers.ranks(number, env=environment) as ranks:
            took = [1e3 * seconds(lambda ranks=ranks: ranks(nothing)) for _ in range(calls + 1)]
            rows[CALL(number)] = {**measure.summary(took[1:]), "unit": "ms"}
    torch.set_num_threads(1)
    tensor = torch.ones(size // 4)
    with helpers.ranks(2, threads=1, env=environment) as ranks:
        ranks(hold, size // 4)
        ways = {
            CLONE: lambda: total(tensor.clone()),
            ARGUMENT: lambda: ranks(total, tensor),
            RESULT: lambda: total(ranks[0](held)),
        }
        speeds = {name: [] for name in ways}
        for number in range(rounds + 1):
            for name in turns.order(ways, number):
                speeds[name].append(size / seconds(ways[name]) / 1e9)
    speeds = {name: found[1:] for name, found in speeds.items()}
    rows |= {name: measure.summary(found) for name, found in speeds.items()}
    return rows, {BY_CLONE(name): turns.ratio(speeds[name], speeds[CLONE]) for name in (ARGUMENT, RESULT)}


def reasons(rows, ratios):
    """Why targets are missed."""
    copied = rows[CLONE]["median"]
    why = {
        name: f"clone() of the same tensor, read as well, made {copied:.2g} GB/s in the same run; the transfer was "
        f"{ratios[BY_CLONE(name)]['median']:.2g} times as quick"
        for name in (ARGUMENT, RESULT)
    }
    for number in (2, 8):
        row = rows[CALL(number)]
        why[CALL(number)] = f"the quickest took {row['min']:.2g} ms: the ranks and the script had to wait for cores"
    return why


def notes(rows, ratios):
    return [
        f"A call has nothing to carry. A large value is a tensor of {SIZE >> 20} MiB, which is read once where it "
        "arrives; the argument exists once for both ranks, and each reads all of it."
    ]
