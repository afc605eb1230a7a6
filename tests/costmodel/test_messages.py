"""The model's ring and double tree against a simulation of every message between all devices.

Devices have one port to send and one to receive, both open at once; a port serves one message at a time, and of those
that wait the one with the earliest piece. A message keeps a port busy for its bytes and arrives one latency later.
"""

import heapq
import itertools
from collections import defaultdict

import pytest

from helpers.costmodel import Link, all_reduce

LINK = Link(9.6e-6, 1 / 25e9)
PIECES = 128  # of each half of the data, in a tree


class Network:
    def __init__(self, link):
        self.link, self.now, self.events, self.order = link, 0.0, [], itertools.count()
        self.waiting, self.busy = defaultdict(list), set()

    def after(self, seconds, do):
        heapq.heappush(self.events, (self.now + seconds, next(self.order), do))

    def send(self, sender, receiver, size, piece, arrived):
        """Bytes enter the receiver's port while they leave the sender's; `arrived` is called when all are there."""
        seconds = size * self.link.per_byte

        def leave():
            self.take(("receive", receiver), piece, seconds, begin=lambda: None, end=arrive)

        def arrive():
            self.after(self.link.latency, arrived)

        self.take(("send", sender), piece, seconds, begin=leave, end=lambda: None)

    def take(self, port, *message, begin, end):
        heapq.heappush(self.waiting[port], (message[0], next(self.order), message[1], begin, end))
        if port not in self.busy:
            self.serve(port)

    def serve(self, port):
        self.busy.discard(port)
        if self.waiting[port]:
            _piece, _order, seconds, begin, end = heapq.heappop(self.waiting[port])
            self.busy.add(port)
            begin()
            self.after(seconds, lambda: (end(), self.serve(port)))

    def run(self):
        while self.events:
            self.now, _order, do = heapq.heappop(self.events)
            do()
        return self.now


def ring(size, devices, link):
    """Seconds until every piece has gone round twice, less two messages: n-1 sums, then n-1 copies."""
    network = Network(link)

    def pass_on(rank, left):
        following = (rank + 1) % devices
        if left:
            network.send(rank, following, size / devices, 0, lambda: pass_on(following, left - 1))

    for rank in range(devices):
        pass_on(rank, 2 * (devices - 1))
    return network.run()


def double_tree(size, devices, link, pieces=PIECES):
    """Seconds until all pieces have gone up and down their tree; a parent waits for the piece from all its children."""
    network = Network(link)
    for tree in both_trees(devices):
        for piece in range(pieces):
            _up_and_down(network, tree, size / 2 / pieces, piece)
    return network.run()


def _up_and_down(network, tree, size, piece):
    missing = {rank: len(children) for rank, (_parent, children) in tree.items()}

    def down(rank):
        for child in tree[rank][1]:
            network.send(rank, child, size, piece, lambda child=child: down(child))

    def up(rank):
        parent = tree[rank][0]
        if parent is None:
            down(rank)
        else:
            network.send(rank, parent, size, piece, lambda: arrived(parent))

    def arrived(rank):
        missing[rank] -= 1
        if not missing[rank]:
            up(rank)

    for rank, (_parent, children) in tree.items():
        if not children:
            up(rank)


def both_trees(devices):
    """Two of {rank: (parent, children)} as NCCL makes them (src/graph/trees.cc): the second is a mirror or a shift."""
    first = {rank: _node(rank, devices) for rank in range(devices)}

    def other(rank):
        if rank is None:
            return None
        return (rank + 1) % devices if devices % 2 else devices - 1 - rank

    second = {other(rank): (other(parent), [other(child) for child in of]) for rank, (parent, of) in first.items()}
    return first, second


def _node(rank, devices):
    if rank == 0:
        return None, [1 << (devices - 1).bit_length() - 1]
    bit = rank & -rank
    parent = (rank ^ bit) | bit << 1
    children, low = [rank - (bit >> 1)] * (bit > 1), bit >> 1
    while low and rank + low >= devices:
        low >>= 1
    return parent if parent < devices else rank ^ bit, children + [rank + low] * (low > 0)


@pytest.mark.parametrize("devices", [2, 3, 8, 13, 64])
def test_both_trees_reach_all_and_who_is_inside_one_is_a_leaf_of_the_other(devices):
    first, second = both_trees(devices)
    for tree in (first, second):
        [root] = [rank for rank, (parent, _children) in tree.items() if parent is None]
        reached = [root]
        for rank in reached:
            reached += tree[rank][1]
            assert all(tree[child][0] == rank for child in tree[rank][1])
        assert sorted(reached) == list(range(devices))
    if devices % 2 == 0:
        assert all(not first[rank][1] or not second[rank][1] or first[rank][0] is None for rank in first)


@pytest.mark.parametrize("size", [1e4, 1e6, 1e7, 1e8])
@pytest.mark.parametrize("devices", [2, 3, 5, 8, 64])
def test_a_ring_takes_what_its_messages_take(devices, size):
    assert sum(all_reduce(size, devices, LINK, "ring")) == pytest.approx(ring(size, devices, LINK))


LINKS = (LINK, Link(2e-5, 1 / 1.25e9), Link(9.6e-6, 1 / 4e11))
DEVICES = (2, 3, 4, 5, 8, 16, pytest.param(64, marks=pytest.mark.long))


@pytest.mark.parametrize("devices", DEVICES)
def test_a_double_tree_takes_about_what_its_messages_take(devices):
    """The model lacks the pieces that fill the tree, and lets bytes wait for latency where both overlap."""
    off = [
        sum(all_reduce(size, devices, link, "tree")) / double_tree(size, devices, link) - 1
        for link in LINKS
        for size in (1e4, 1e6, 5e6, 26e6, 1e9)
    ]
    assert -0.05 < min(off) and max(off) < 0.28
