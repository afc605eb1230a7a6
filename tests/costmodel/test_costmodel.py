"""The cost model against closed forms and planted machines; against real ranks only that it measures at all."""

import json
import math
import random

import pytest
import torch
import torch.distributed as dist

import helpers
from helpers import costmodel
from helpers.costmodel import Compute, Link, all_reduce, buckets, fit, links, model, overlap, step

LINK = Link(1e-4, 1e-8)
EVEN = tuple((10 * 2**20, (k + 1) / 10) for k in range(10))  # ten gradients of 10 MB, one after the other
MODEL = Compute((1e-3, 1e-3), (2e-3, 2e-3), update=1e-3, gradients=EVEN)


# -- closed forms -------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 4, 8, 1024])
def test_a_ring_sends_the_least_bytes_and_a_pipelined_tree_the_fewest_messages(n):
    latency, bandwidth = all_reduce(1e6, n, LINK, "ring")
    assert latency == pytest.approx(2 * (n - 1) * LINK.latency)
    assert bandwidth == pytest.approx(2 * (n - 1) / n * 1e6 * LINK.per_byte)
    latency, bandwidth = all_reduce(1e6, n, LINK, "tree")
    assert latency == pytest.approx(2 * math.ceil(math.log2(n)) * LINK.latency)
    assert bandwidth == pytest.approx(min(n / 2, 2) * 1e6 * LINK.per_byte)
    for size in (0, 1e4, 1e6, 1e9):
        assert all_reduce(size, n, LINK, "best") == min(
            (all_reduce(size, n, LINK, w) for w in ("ring", "tree")), key=sum
        )
    assert all_reduce(1e6, 1, LINK) == (0, 0)


def test_a_hierarchical_all_reduce_sends_fewer_messages_between_hosts():
    near = Link(1e-6, 1e-11)
    assert costmodel.in_hosts(1e6, 8, 8, near, LINK) == all_reduce(1e6, 8, near)
    latency, bandwidth = costmodel.in_hosts(1e6, 64, 8, near, LINK)
    assert latency == pytest.approx(14 * near.latency + 14 * LINK.latency)
    assert bandwidth == pytest.approx(1.75 * 1e6 * (near.per_byte + LINK.per_byte))
    trees = costmodel.in_hosts(1e6, 1024, 8, near, LINK, "tree")
    assert trees[0] == pytest.approx(14 * near.latency + 2 * math.log2(128) * LINK.latency)
    with pytest.raises(ValueError, match="multiple of 8"):
        costmodel.in_hosts(1e6, 12, 8, near, LINK)


def test_what_cannot_be_is_refused():
    for size, devices in ((-1, 2), (1, 0), (1, 2.5)):
        with pytest.raises(ValueError):
            all_reduce(size, devices, LINK)
    for batches in ({}, {"batch": 1, "global_batch": 1}):
        with pytest.raises(ValueError):
            costmodel.curve(MODEL, LINK, [1], **batches)
    for answered, batches in ((answers(MODEL, LINK)[:1], (8, 32)), (answers(MODEL, LINK), (8, 8))):
        with pytest.raises(ValueError):
            fit.fit(answered, batches)


# -- buckets and overlap ------------------------------------------------------------------


def test_buckets_are_those_of_ddp():
    draw = random.Random(0)
    for _ in range(20):
        sizes = [4 * draw.randint(1, 3 * 10**6) for _ in range(draw.randint(1, 40))]
        tensors = [torch.empty(size // 4, device="meta") for size in sizes]
        theirs, _ = dist._compute_bucket_assignment_by_size(tensors, list(model.LIMITS))
        ours = buckets([(size, k) for k, size in enumerate(sizes)])
        assert [size for size, _ in ours] == [sum(sizes[k] for k in of) for of in theirs]
        assert [ready for _, ready in ours] == [of[-1] for of in theirs]


def test_what_hides_and_what_does_not():
    assert overlap(1.0, [0.5, 1.0], [0.4, 0.2], [0, 0]) == pytest.approx((0, 0.2))  # the first hides whole
    assert overlap(1.0, [0.5, 1.0], [0.8, 0.2], [0, 0]) == pytest.approx((0, 0.5))  # they queue
    assert overlap(1.0, [1.0], [0.3], [0.3]) == pytest.approx((0, 0.3))  # after backward nothing is taken
    assert overlap(1.0, [0.5, 1.0], [0.4, 0.2], [0.1, 0]) == pytest.approx((0.1, 0.2))  # backward is slowed
    taken, exposed = overlap(1.0, [0.0, 1.0], [10.0, 0.0], [5.0, 0.0])
    assert taken == pytest.approx(1.0) and exposed == pytest.approx(8.0)  # half a core for as long as it runs
    assert overlap(1.0, [], [], []) == (0, 0)
    assert overlap(1.0, [0.2, 1.0], [0.5, 0.1], [0.5, 0.1])[0] == pytest.approx(0.5)  # a core all for itself


def test_a_step_is_made_of_its_parts():
    one = step(MODEL, LINK, 1, 32)
    assert one.seconds == pytest.approx(MODEL.seconds(32)) == pytest.approx(1e-3 * (3 + 3 * 32 + 1))
    assert (one.taken, one.exposed, one.efficiency, one.regime) == (0, 0, 1, model.COMPUTE)
    two = step(MODEL, LINK, 2, 32, algorithm="ring")
    sent = buckets(EVEN)
    costs = [sum(all_reduce(size, 2, LINK)) for size, _ in sent]
    assert two.exposed == pytest.approx(overlap(66e-3, [ready for _, ready in sent], costs, [0] * len(sent))[1])
    assert two.latency == pytest.approx(len(sent) * 2e-4) and two.bandwidth == pytest.approx(MODEL.bytes * 1e-8)
    assert two.seconds == pytest.approx(two.compute + two.exposed) and two.rate == pytest.approx(64 / two.seconds)


# -- the fit ------------------------------------------------------------------------------


def answers(compute, link, ranks=2, batches=(8, 32), rounds=9, noise=0.0, taken=2e-9):
    """What ranks of a planted machine would have measured."""
    draw = random.Random(3)

    def about(seconds):
        return seconds * (1 + draw.uniform(-noise, noise))

    sizes = (2**12, 2**20, 2**24)
    cost = {size: sum(all_reduce(size, ranks, link)) for size in sizes}
    seconds = {
        b: (*(part[0] + b * part[1] for part in (compute.forward, compute.backward)), compute.update) for b in batches
    }
    backward = seconds[batches[-1]][1]
    return [
        {
            "one": {b: [[about(part) for part in seconds[b]] for _ in range(rounds)] for b in batches},
            "sweep": {size: [about(cost[size]) for _ in range(rounds)] for size in sizes},
            "beside": {
                size: [backward + taken * min(size, backward * size / cost[size])] * rounds for size in sizes[1:]
            },
            "broadcast": {0: [link.broadcast * (ranks.bit_length() - 1)] * rounds},
            "copy": {1000: [link.copy_per_byte * 1000] * rounds},
            "ready": {0: [[ready for _, ready in compute.gradients]] * rounds},
            "bytes": [size for size, _ in compute.gradients],
            "ddp": {"DDP": [123.0] * rounds},
            "loss": {},
        }
        for _ in range(ranks)
    ]


@pytest.mark.parametrize("ranks", [2, 4])
def test_planted_numbers_are_found(ranks):
    planted = Link(3e-4, 2e-9, 2e-9, 4e-10, 6e-4)
    fitted = fit.fit(answers(MODEL, planted, ranks), (8, 32))
    for name, value in vars(planted).items():
        assert getattr(fitted.link, name) == pytest.approx(value), name
    assert fitted.compute.forward == pytest.approx(MODEL.forward)
    assert fitted.compute.backward == pytest.approx(MODEL.backward)
    assert fitted.compute.gradients == EVEN
    assert max(map(abs, fitted.residuals.values())) < 1e-9 and set(fitted.compute.spread) == {0.0}
    noisy = fit.fit(answers(MODEL, planted, ranks, noise=0.1), (8, 32))
    assert noisy.link.per_byte == pytest.approx(2e-9, rel=0.1) and noisy.compute.spread


def test_a_planted_fault_shows_in_the_error():
    """The model knows nothing of a rank that sleeps in its steps with DDP, or of a network that got slower since."""
    measured = answers(MODEL, LINK)
    right = links.predict(fit.fit(measured, (8, 32)), {"batch": 16}).seconds
    for of, seconds in zip(measured, (right, right + 0.5), strict=True):
        of["ddp"]["DDP"] = [seconds] * 9
        of["loss"]["DDP"] = 1.0
    row = links.row(measured, (8, 32), {"DDP": {"batch": 16}})["ways"]["DDP"]
    assert row["predicted"] == pytest.approx(right) and row["measured"] == pytest.approx(right + 0.5)
    assert row["error"] == pytest.approx(right / (right + 0.5) - 1)


# -- real ranks ---------------------------------------------------------------------------


def tiny():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64, 10), torch.nn.BatchNorm1d(10))


def test_two_ranks_measure_what_the_fit_needs():
    """The numbers of so short a run mean nothing; that they are there, finite, and of the right kind, does."""
    ways = {
        "DDP": {"batch": 4},
        "fp16": {"batch": 4, "compression": "fp16"},
        "parts": {"batch": 4, "accumulation": 2},
        "small": {"batch": 4, "bucket_mb": 1},
    }
    options = {"shape": (3, 8, 8), "threads": 1, "env": {"HELPERS_DEVICE": "cpu"}, "timeout": 600}
    found = helpers.launch(fit.measure, 2, tiny, (4, 64), ways, (2**12, 2**16), 5, **options)
    row = links.row(found, (4, 64), ways)
    fitted = fit.restored(json.loads(json.dumps(row["fit"])))
    assert sorted(size for size, _ in fitted.compute.gradients) == [40, 40, 40, 4 * 10 * 3 * 64]
    assert all(len(seconds) == 5 and min(seconds) > 0 for seconds in fitted.sweep.values())
    readies = [ready for _, ready in fitted.compute.gradients]
    assert readies == sorted(readies) and 0 < readies[0] and readies[-1] <= 1
    assert set(row["ways"]) == set(ways)
    assert all(math.isfinite(of["error"]) and of["measured"] > 0 for of in row["ways"].values())
    losses = [of["loss"] for of in row["ways"].values()]
    assert losses[0] == pytest.approx(losses[1], abs=1e-2) and losses[0] == pytest.approx(losses[3], abs=1e-6)
    assert abs(losses[2] - losses[0]) > 1e-4, "each micro-batch has samples of its own"
