"""The picture of a step: from planted events, and from real profiles of real ranks."""

import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import helpers
from helpers.cluster import twohosts
from helpers.launcher import launch as launcher
from helpers.profile import record, timeline
from helpers.profile.kinds import BACKWARD, COMMUNICATION, FORWARD, GRADIENTS, INPUT, OPTIMIZER, WAIT
from helpers.profile.spans import Span, spans_of

STEPS = 5
OPTIONS = {"steps": STEPS, "warm_up": 2, "threads": 1, "timeout": 600}


def train(way, updates=STEPS + 2, late=0.0):
    with helpers.distributed() as world:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
        if way == "ddp":
            model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        for _ in range(updates):
            inputs, labels = torch.randn(32, 64), torch.randint(0, 4, (32,))
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            if world.rank == 1:
                time.sleep(late)
            if way == "naive":
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= world.size
            optimizer.step()
        return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.fixture(scope="module")
def ddp():
    return helpers.timeline(train, 2, "ddp", **OPTIONS)


# -- planted events -----------------------------------------------------------------------


NODE = "autograd::engine::evaluate_function: AddmmBackward0"


def event(name, begin, end, cat="cpu_op", tid=1, **args):
    args = {key.replace("_", " "): value for key, value in args.items()}
    times = {"ts": 1000 * begin, "dur": 1000 * (end - begin)}
    return {"ph": "X", "cat": cat, "name": name, "tid": tid, **times, "args": args}


def planted(wait_until=900):
    """A step of 1 ms (in µs here): a bucket leaves in backward, and the thread waits for it from 700 on."""
    return [
        event("aten::randn", 20, 60, Sequence_number=7, Fwd_thread_id=0),  # before forward, and with its number
        event("aten::linear", 100, 200, Sequence_number=7, Fwd_thread_id=0),
        event("aten::addmm", 110, 190, Sequence_number=7, Fwd_thread_id=0),
        event("aten::relu", 200, 250, Sequence_number=8, Fwd_thread_id=0),
        event(NODE, 300, 500, Sequence_number=8, Fwd_thread_id=1),
        event("aten::mm", 310, 480),
        event("c10d::allreduce_", 490, 495),
        event(NODE, 500, 700, Sequence_number=7, Fwd_thread_id=1),
        event("aten::mm", 501, 700),
        event("gloo:all_reduce", 500, wait_until, "user_annotation", 2, Input_Dims=[[25, 10]], Input_type=["float"]),
        event("aten::mul_", 905, 925),
        event("Optimizer.step#SGD.step", 930, 1000, "user_annotation"),
        event("aten::add_", 935, 990),
    ]


def spans(events, device="cpu"):
    return spans_of(events, SimpleNamespace(rank=0, main=1, device=device, ends=[0, 1_000_000]))


def found(events):
    return {(span.kind, span.start // 1000, span.end // 1000): span for span in spans(events)}


def test_phases_of_planted_events():
    kinds = found(planted())
    assert list(kinds) == [
        (INPUT, 20, 60),
        (FORWARD, 100, 300),
        (BACKWARD, 300, 700),
        (COMMUNICATION, 500, 900),
        (WAIT, 700, 900),
        (GRADIENTS, 905, 925),
        (OPTIMIZER, 930, 1000),
    ]
    bucket = kinds[COMMUNICATION, 500, 900]
    assert (bucket.name, bucket.number, bucket.bytes, bucket.step) == ("bucket", 0, 1000, 0)
    kinds = {kind for kind, *_ in found(planted(wait_until=690))}
    assert COMMUNICATION in kinds and WAIT not in kinds, "a thread that computes does not wait"


def test_buckets_are_counted_as_they_were_queued():
    """Gloo has two threads: the second bucket's may begin first."""
    sizes = {"A": [[[250]]], "B": [[[10]]]}
    events = [
        event("aten::linear", 100, 200, Sequence_number=7, Fwd_thread_id=0),
        event(NODE, 300, 700, Sequence_number=7, Fwd_thread_id=1),
        event("c10d::allreduce_", 310, 315, Input_Dims=sizes["A"], Input_type=["float"]),
        event("c10d::allreduce_", 320, 325, Input_Dims=sizes["B"], Input_type=["float"]),
        event("gloo:all_reduce", 330, 800, "user_annotation", 3, Input_Dims=sizes["B"][0], Input_type=["float"]),
        event("gloo:all_reduce", 340, 800, "user_annotation", 2, Input_Dims=sizes["A"][0], Input_type=["float"]),
        event("Optimizer.step#SGD.step", 930, 1000, "user_annotation"),
    ]
    buckets = [span for span in found(events).values() if span.kind == COMMUNICATION]
    assert {span.number: span.bytes for span in buckets} == {0: 1000, 1: 40}


def test_kernels_of_a_gpu_are_streams():
    """As torch writes them for CUDA: the CPU launches, the stream computes, NCCL has a stream of its own."""
    events = [each for each in planted() if not each["name"].startswith("gloo")]
    kernels = [(120, 150, 260, "sgemm"), (320, 400, 700, "sgemm"), (940, 950, 960, "multi_tensor")]
    kernels.append((495, 500, 900, "ncclDevKernel_AllReduce"))
    for number, (launched, begin, end, name) in enumerate(kernels):
        more = {"Collective_name": "allreduce", "In_msg_nelems": 250, "dtype": "Float"} if "nccl" in name else {}
        events.append(event("cudaLaunchKernel", launched, launched + 5, "cuda_runtime", correlation=number))
        events.append(event(name, begin, end, "kernel", 7, correlation=number, stream=7, **more))
    shown = spans(events, "cuda")
    streams = [(span.kind, span.start // 1000, span.end // 1000) for span in shown if span.row == "stream 7"]
    assert streams == [(FORWARD, 150, 260), (BACKWARD, 400, 700), (OPTIMIZER, 950, 960)]
    assert [(span.name, span.bytes) for span in shown if span.kind == COMMUNICATION] == [("bucket", 1000)]
    line = timeline.Timeline(1, shown, [[0, 1_000_000]])
    assert line.hidden_shares() == [pytest.approx(0.5)]  # 200 of 400 µs beside a kernel


@pytest.mark.parametrize(
    "name, causes",
    [
        ("bucket", [("rank 1", 0.3, 0.6), ("bucket 0", 0.6, 0.9)]),
        ("recv", [("recv 0", 0.3, 0.9)]),  # between two ranks the first message of one is not the other's
    ],
)
def test_what_a_rank_waits_for(name, causes):
    begun = {0: 0.2, 1: 0.6}
    sent = [Span(rank, "communication", COMMUNICATION, name, begun[rank], 0.9, 0, 8, 0) for rank in begun]
    wait = Span(0, "main", WAIT, name, 0.3, 0.9, 0, number=0)
    pieces = [span for span in timeline._by_cause([*sent, wait]) if span.kind == WAIT]
    assert [(span.name, span.start, span.end) for span in pieces] == causes


# -- real ranks ---------------------------------------------------------------------------


def test_the_timeline_of_ddp(ddp):
    assert ddp.steps == STEPS
    parameters = sum(p.nbytes for p in ddp.answers[0])
    buckets = ddp.collectives()
    assert len(buckets) > 1 and all(row["collective"].startswith("bucket") for row in buckets)
    assert sum(row["bytes"] for row in buckets) == parameters
    for rank in (0, 1):
        for step in range(STEPS):
            mine = [span for span in ddp.spans if (span.rank, span.step) == (rank, step)]
            kinds = (FORWARD, BACKWARD, OPTIMIZER)
            first = {kind: min(span.start for span in mine if span.kind == kind) for kind in kinds}
            assert list(first) == sorted(first, key=first.get)
            assert sum(span.bytes for span in mine if span.kind == COMMUNICATION) == parameters
            assert ddp.ends[rank][step] <= min(first.values()) and max(first.values()) <= ddp.ends[rank][step + 1]
    overlap = ddp.overlap()
    assert 0 <= overlap["low"] <= overlap["median"] <= overlap["high"] <= 1 and overlap["n"] == STEPS


def test_a_blocking_all_reduce_hides_nothing():
    line = helpers.timeline(train, 2, "naive", late=1.0, **OPTIONS)
    assert len(line.collectives()) == len(line.answers[0]) and line.overlap()["median"] < 0.2
    waits = [span for span in line.spans if (span.rank, span.kind, span.name) == (0, WAIT, "rank 1")]
    assert sum(span.end - span.start for span in waits) > 0.5 * STEPS  # rank 1 comes 1 s late, whatever else delays
    assert line.rows()[0]["waits (ms)"] > line.rows()[1]["waits (ms)"]


def test_the_same_is_trained_as_without(ddp):
    plain = helpers.launch(train, 2, "ddp", threads=1, timeout=300)
    for weights, others in zip(ddp.answers, plain, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(weights, others, strict=True))


def test_the_timeline_of_a_configuration():
    line = helpers.timeline(helpers.RunConfig(threads=1), **{**OPTIONS, "threads": None})
    row = line.rows()[0]
    assert all(row[f"{phase} (ms)"] > 0 for phase in (INPUT, FORWARD, BACKWARD, OPTIMIZER))
    assert line.overlap() is None and line.figure()


@pytest.mark.skipif(bool(twohosts.why_not()), reason=twohosts.why_not() or "")
def test_a_timeline_over_a_slow_cable():
    with twohosts.two_hosts(rate=50) as hosts:
        line = helpers.timeline(train, 2, "naive", hosts=hosts, **OPTIONS)
        with pytest.raises(ValueError, match="3 ranks"):
            helpers.timeline(train, 3, "naive", hosts=hosts, **OPTIONS)
    largest = max(line.collectives(), key=lambda row: row["bytes"])
    assert largest["ms"] > 0.7 * 8e-3 * largest["bytes"] / 50 and "50 Mbit/s" in line.conditions


# -- what comes out -----------------------------------------------------------------------


def test_a_timeline_that_was_saved_is_the_same(ddp, tmp_path):
    ddp.save(tmp_path / "line.json")
    kept = timeline.load(tmp_path / "line.json")
    assert ddp.conditions in kept.conditions
    assert kept.overlap()["median"] == pytest.approx(ddp.overlap()["median"], abs=0.01)
    assert len(kept.collectives()) == len(ddp.collectives()) and kept.figure()
    with pytest.raises(ValueError):
        kept.write_trace(tmp_path / "trace.json")


# -- bad input ----------------------------------------------------------------------------


def train_alone(updates, backward=True):
    with helpers.distributed() as world:
        weight = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], 0.1)
        for _ in range(updates[world.rank]):
            if backward:
                (weight**2).sum().backward()
            optimizer.step()


@pytest.mark.parametrize(
    "updates, backward, words",
    [([0, 10], True, "rank 0: 0, rank 1: 10"), ([4], True, "rank 0: 4"), ([10], False, "never backward")],
)
def test_a_function_that_does_not_train_is_named(updates, backward, words):
    with pytest.raises(record.NoTraining, match=words) as caught:
        helpers.timeline(train_alone, len(updates), updates, backward, **OPTIONS)
    assert caught.value.ranks == [0]


@pytest.mark.parametrize("call", [helpers.timeline, helpers.memory])
def test_bad_arguments_are_refused_before_any_rank_starts(call, monkeypatch):
    monkeypatch.setattr(launcher, "_in_turn", None)
    two = helpers.RunConfig(strategy="ddp", nproc_per_node=2)
    for args, options in (((5,), {}), ((two, 3), {}), ((two,), {"lr": 1}), ((two, 2, 8), {}), ((train, "two"), {})):
        with pytest.raises(TypeError):
            call(*args, **options)
    with pytest.raises(ValueError, match="at least 1 rank"):
        call(train, 0)
    with pytest.raises(ValueError, match="at least 5"):
        helpers.timeline(train, 2, "ddp", steps=3)
