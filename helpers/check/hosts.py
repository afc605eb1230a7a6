"""Checks of 09_several_machines: who is where, what an all-reduce costs, and what of it does not hide."""

import math

from .. import costmodel
from .verdict import attempt, exercise, number

PLACES = ((2, 4), (4, 8), (3, 1), (1, 2))  # (hosts, ranks on each)
CASES = (  # bytes, devices, seconds a message, seconds a byte
    (1e6, 2, 1e-4, 1e-8), (1e8, 8, 1e-5, 1e-10), (0.0, 16, 1e-3, 1e-9), (4e6, 1024, 1e-6, 1e-9), (1e6, 1, 1.0, 1.0),
)  # fmt: skip
STEPS = (  # backward, ready, costs
    (1.0, (1.0,), (0.3,)), (1.0, (0.2, 0.5, 1.0), (0.1, 0.1, 0.2)), (1.0, (0.2, 0.4, 1.0), (0.9, 0.4, 0.1)),
    (0.1, (0.3, 0.6, 1.0), (0.5, 0.5, 0.5)), (2.0, (0.5, 1.0), (0.1, 0.0)),
)  # fmt: skip


@exercise("The node rank says which machine, the local rank which of its devices.")
def where(answer):
    """`answer(rank, nproc_per_node)` is (node_rank, local_rank)."""
    for hosts, each in PLACES:
        for rank in range(hosts * each):
            got, problem = attempt(lambda *given: tuple(map(int, answer(*given))), rank, each)
            wanted = divmod(rank, each)
            asked = f"rank {rank} with {each} ranks on each host"
            yield asked, problem
            if got == wanted[::-1] and got != wanted:
                yield f"{asked}: you say {got}. These are the right two numbers, in the wrong order."
            if got != wanted:
                yield f"{asked}: you say {got}. {_hint_where(got, wanted)}"


def _hint_where(got, wanted):
    if len(got) != 2:
        return "Give two numbers: the host's and, on it, the rank's."
    if got[0] != wanted[0]:
        return "The first host has the ranks from 0 on, the second goes on counting where the first has ended."
    return "The host is right. Local ranks start at 0 on each host, because each has a device 0."


@exercise("Messages grow with the devices; bytes do not: never more than twice the size, however many there are.")
def ring_seconds(answer):
    """`answer(size, n, latency, per_byte)`: seconds of a ring all-reduce of `size` bytes on `n` devices."""
    for size, n, latency, per_byte in CASES:
        link = costmodel.Link(latency, per_byte)
        wanted = sum(costmodel.all_reduce(size, n, link))
        got, problem = number(answer, size, n, latency, per_byte)
        asked = f"{size:,.0f} bytes on {n} devices"
        yield asked, problem
        if not math.isclose(got, wanted, rel_tol=1e-6, abs_tol=1e-12):
            yield f"{asked}: {got:.4g} s. {_hint_ring(got, size, n, latency, per_byte)}"


def _hint_ring(got, size, n, latency, per_byte):
    messages, share = 2 * (n - 1), 2 * (n - 1) / n

    def close(value):
        return math.isclose(got, value, rel_tol=1e-6)

    if n == 1:
        return "One device alone sends nothing."
    if close(share * size * per_byte) and latency:
        return "These are the bytes. What do the messages cost, each of them, however small?"
    if close((messages * latency + share * size * per_byte) / 2):
        return "That is once around the ring: now each device has the sum of one piece. All need all pieces."
    if close(latency + size * per_byte) or close(messages * latency + messages * size * per_byte):
        return (
            "How large is the piece that travels in one message? The tensor is cut into as many as there are devices."
        )
    return "How many messages does a device send, one after the other, and how many bytes are in each?"


@exercise("Only the last bucket can never hide, and what has queued up before it.")
def not_hidden(answer):
    """`answer(backward, ready, costs)`: seconds of sending that are left when backward is over."""
    for backward, ready, costs in STEPS:
        wanted = costmodel.overlap(backward, ready, costs, [0.0] * len(costs))[1]
        got, problem = number(answer, backward, list(ready), list(costs))
        asked = f"backward {backward:g} s, ready at {list(ready)} of it, costs {list(costs)} s"
        yield asked, problem
        if not math.isclose(got, wanted, rel_tol=1e-6, abs_tol=1e-9):
            yield f"{asked}: {got:.4g} s. {_hint_hidden(got, wanted, costs)}"


def _hint_hidden(got, wanted, costs):
    if math.isclose(got, sum(costs), rel_tol=1e-6):
        return "That is all of it, as if nothing were sent while backward still runs."
    if math.isclose(got, costs[-1], rel_tol=1e-6, abs_tol=1e-12):
        return "The last bucket has to wait until those before it are through: there is one network for all of them."
    if got < 0:
        return "What is left cannot be less than nothing."
    if got > wanted:
        return "Less is left: a bucket starts as soon as it is ready and the network is free, also amid backward."
    return "More is left. When does each bucket start, and when is the network free again?"
