"""The promises of `helpers.ranks`, apart from a notebook: state, groups, failures, what travels."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy
import pytest
import torch
import torch.distributed as dist
from kernel import ROOT, running, wait_until
from places import announce, with_patience

import helpers
from helpers import RankError, RankTimeout, launch
from helpers.launcher import progress

LONG = pytest.mark.long
PROMPT = 200  # s; a rank that is waited for would take ten minutes, and a busy machine is the normal case


@pytest.fixture(scope="module")
def ranks():
    with helpers.ranks(3, timeout=300) as opened:
        yield opened


def meet(bad=None, do=None):
    """The sum over the group of 1, for which all have to come."""
    if helpers.ranks.state.rank == bad:
        do()
    one = torch.ones(1)
    dist.all_reduce(one)
    return one.item()


def broken():
    raise ZeroDivisionError("planted")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def nap():
    time.sleep(600)


def stubborn(seconds):
    """Goes on, whatever interrupts it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            time.sleep(0.05)
        except KeyboardInterrupt:
            pass


# -- calls and what stays between them -------------------------------------------------------------


def test_calls_on_all_ranks_or_some(ranks):
    def place(a, b=0):
        return ranks.state.rank, a, b

    assert ranks(place, "x", b=5) == [(0, "x", 5), (1, "x", 5), (2, "x", 5)]
    assert ranks[-1](place, 1) == (2, 1, 0) and ranks[:2](place, 1) == [(0, 1, 0), (1, 1, 0)]
    assert ranks[2, 0](place, 1) == [(2, 1, 0), (0, 1, 0)] and [one(place, 0)[0] for one in ranks] == [0, 1, 2]


def test_ranks_keep_their_processes_groups_and_state(ranks):
    def build():
        helpers.ranks.state.weight = torch.full((2,), float(ranks.state.rank))
        helpers.ranks.state.pair = dist.new_group([0, 1])
        return os.getpid()

    def reduce():
        if ranks.state.rank < 2:
            dist.all_reduce(ranks.state.weight, group=ranks.state.pair)
        return os.getpid()

    pids = ranks(build)
    assert ranks(reduce) == pids and len(set(pids)) == 3
    assert torch.equal(torch.stack(ranks.state.weight), torch.tensor([[1.0, 1], [1, 1], [2, 2]]))
    ranks[1].state.weight = "set from outside"
    assert ranks[1:].state.weight[0] == "set from outside"
    del pids
    with pytest.raises(RankError, match="has no attribute 'absent'"):
        ranks.state.absent  # noqa: B018


def test_the_function_of_a_launch_runs_unchanged(ranks):
    def summed():
        with helpers.distributed() as world:
            return world.rank, meet()

    assert ranks(summed) == ranks(summed) == launch(summed_alone, 3) == [(0, 3.0), (1, 3.0), (2, 3.0)]


def summed_alone():
    with helpers.distributed() as world:
        dist.all_reduce(one := torch.ones(1))
        return world.rank, one.item()


def test_without_a_group_functions_make_their_own():
    def by_hand(fail=False):
        dist.init_process_group("gloo")
        if fail and dist.get_rank() == 1:
            broken()
        dist.all_reduce(one := torch.ones(1))
        dist.destroy_process_group()
        return one.item()

    with helpers.ranks(2, group=False) as pair:
        assert pair(by_hand) == pair(by_hand) == [2.0, 2.0]
        with pytest.raises(RankError, match="planted"):
            pair(by_hand, fail=True)
        assert pair(by_hand) == [2.0, 2.0] and pair(summed_alone) == [(0, 2.0), (1, 2.0)]


def test_options():
    def read():
        return torch.get_num_threads(), os.environ["PLANTED"]

    events = []
    with helpers.ranks(2, threads=3, env={"PLANTED": "yes"}, on_event=events.append, timeout=15) as pair:
        assert pair(read, timeout=300) == [(3, "yes")] * 2
        pair(helpers.emit, "seen", number=7, timeout=300)
        assert sorted((e["rank"], e["number"]) for e in events) == [(0, 7), (1, 7)]
        with pytest.raises(RankTimeout, match="no result after 15 s"):
            pair(nap)
        with pytest.raises(RankTimeout, match="no result after 1 s"):  # a call's own is the one that counts
            pair(nap, timeout=1)


# -- what travels ---------------------------------------------------------------------------------------


class Odd:
    def __reduce__(self):
        raise ValueError("stays at home")


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(6.0)[2:5],
        torch.arange(100_000, dtype=torch.bfloat16).reshape(100, -1).T,
        numpy.arange(100_000),
        torch.nn.Linear(200, 300),
        {"a": [b"x" * 200_000, "text", torch.empty(0, 3)]},
        torch.eye(300).to_sparse(),
    ],
    ids=["slice", "transposed", "array", "module", "nested", "sparse"],
)
def test_values_arrive_as_they_were_sent(ranks, value):
    def same(got):
        return repr(got), got

    text, back = ranks[1](same, value)
    assert text == repr(value) == repr(back)
    if isinstance(value, torch.nn.Module):
        assert all(torch.equal(a, b) for a, b in zip(value.parameters(), back.parameters(), strict=True))
        assert all(p.requires_grad and p.is_leaf for p in back.parameters())
    if isinstance(value, torch.Tensor) and not value.is_sparse:
        assert torch.equal(value, back) and value.stride() == back.stride() and value.dtype == back.dtype


def test_each_rank_has_a_copy_of_a_large_argument(ranks):
    def change(tensor, view):
        tensor += ranks.state.rank + 1
        return tensor[0].item(), view[0].item()  # two views of one memory arrive as such

    tensor = torch.zeros(1_000_000)
    assert ranks(change, tensor, tensor[:2]) == [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]
    assert not tensor.any()


@pytest.mark.parametrize("value", [threading.Lock(), Odd()], ids=["lock", "reduce"])
def test_what_cannot_travel_is_named(ranks, value):
    with pytest.raises(TypeError, match=r"argument 1 \((lock|Odd)\)"):
        ranks(lambda _: None, value)
    with pytest.raises(RankError, match=r"rank 1 failed.*(?s:.)*return value \(lock\) cannot be sent back"):
        ranks[:2](lambda: threading.Lock() if ranks.state.rank else None)
    assert ranks(meet) == [3.0] * 3


# -- bad input ---------------------------------------------------------------------------------------


def test_bad_calls_are_refused_before_a_rank_is_called(ranks):
    for which, error in ((3, IndexError), (-4, IndexError), ("1", TypeError), (1.0, TypeError), ([0, 3], IndexError)):
        with pytest.raises(error):
            ranks[which]
    for call, error in (
        (lambda: ranks[3:](meet), ValueError),
        (lambda: ranks[0, 0](meet), ValueError),
        (lambda: ranks(3), TypeError),
        (lambda: ranks(meet, 1, 2, 3), TypeError),
        (lambda: ranks(meet, timeout=0), ValueError),
        (lambda: helpers.ranks.state, RuntimeError),
    ):
        with pytest.raises(error):
            call()
    assert ranks(meet) == [3.0] * 3


def test_a_rank_has_no_ranks_of_its_own(ranks):
    for nested in (lambda: ranks(meet), lambda: ranks[0], lambda: helpers.ranks(2)):
        with pytest.raises(RankError, match="in the notebook"):
            ranks(nested)


def test_closed_ranks_say_so():
    with helpers.ranks(1) as alone:
        pid = alone(os.getpid)[0]
    alone.close()
    assert not running(pid)
    with pytest.raises(RuntimeError, match=r"have ended, since they were closed: .*helpers.ranks\(1\)"):
        alone(meet)


# -- failures ---------------------------------------------------------------------------------------------


def test_after_an_exception_the_ranks_and_what_they_hold_are_still_there(ranks):
    ranks.state.held = "still there"
    pids = ranks(os.getpid)
    for attempt in range(2):
        with pytest.raises(RankError, match="ZeroDivisionError: planted") as caught:
            ranks(meet, attempt, broken)
        assert caught.value.rank == attempt and isinstance(caught.value.exception, ZeroDivisionError)
        assert ranks(meet) == [3.0] * 3
    assert ranks(os.getpid) == pids and ranks.state.held == ["still there"] * 3


WAITS = {
    "barrier": lambda: dist.barrier(),
    "receive": lambda: dist.recv(torch.ones(1), 1),
    "asynchronous": lambda: dist.all_reduce(torch.ones(1), async_op=True).wait(),
    "new group": lambda: dist.new_group([0, 1, 2]),
    "store": lambda: dist.distributed_c10d._get_default_store().get("nothing"),
    "sleep": lambda: time.sleep(600),
}


@pytest.mark.parametrize("how", WAITS)
def test_wherever_the_others_wait_they_come_back(ranks, how, tmp_path):
    def wait():
        if ranks.state.rank == 1:
            wait_until(lambda: len(list(tmp_path.iterdir())) == 2, 300)
            broken()
        announce("act", tmp_path / str(ranks.state.rank))
        act()

    def act():
        waits()

    waits = WAITS[how]
    began = time.monotonic()
    with pytest.raises(RankError, match=r"rank 1 failed"):
        ranks(wait)
    assert ranks(meet) == [3.0] * 3 and time.monotonic() - began < PROMPT


def test_a_ranks_own_connections_outlive_an_interrupted_collective(ranks):
    """They lead to this machine, as those of gloo do, and one rank has made its own while it was in the group."""

    def connect(address):
        ranks.state.own = socket.create_connection(address)

    def echo():
        ranks.state.own.sendall(b"here")
        return ranks.state.own.recv(4)

    with socket.create_server(("127.0.0.1", 0)) as server:
        ranks[2](connect, server.getsockname())
        peer, _ = server.accept()
        for fail in (lambda: ranks(meet, 0, broken), lambda: ranks(meet, 0, nap, timeout=1)):
            with pytest.raises(RankError):
                fail()
            peer.sendall(b"back")
            assert ranks[2](echo) == b"back" and peer.recv(4) == b"here"
            assert ranks(meet) == [3.0] * 3
        peer.close()
        ranks[2](lambda: ranks.state.own.close())


def test_ddp_models_join_the_new_group(ranks):
    def build():
        torch.manual_seed(0)
        ranks.state.model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1, bias=False))

    def gradient():
        model = ranks.state.model
        model.zero_grad()
        model(torch.full((1, 3), float(ranks.state.rank))).sum().backward()
        return model.module.weight.grad.tolist()

    ranks(build)
    assert ranks(gradient) == [[[1.0] * 3]] * 3  # the mean of 0, 1 and 2
    with pytest.raises(RankError):
        ranks(meet, 2, broken)
    assert ranks(gradient) == [[[1.0] * 3]] * 3
    ranks.state.model = None


def test_a_timeout_shows_every_stack_and_the_ranks_survive(ranks):
    def attempt(seconds):
        with pytest.raises(RankTimeout) as caught:
            ranks(meet, 0, nap, timeout=seconds)
        return caught.value

    def seen(error):
        return "time.sleep(600)" in error.stacks[0] and "dist.all_reduce(one)" in error.stacks[2]

    error = with_patience(attempt, seen)
    assert seen(error), error.stacks
    assert ranks(meet) == [3.0] * 3


def test_an_interrupt_stops_the_call_and_not_the_ranks(ranks, capsys, tmp_path):
    there = tmp_path / "there"

    def interrupt():
        assert wait_until(there.exists, 300) is not None
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        ranks(meet, 1, lambda: (there.touch(), nap()))
    thread.join()
    assert ranks(meet) == [3.0] * 3 and "rank 0:" in capsys.readouterr().err


@LONG
def test_a_rank_that_never_stops_ends_them_all(tmp_path):
    def deaf():
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        (tmp_path / str(helpers.ranks.state.rank)).touch()
        time.sleep(600)

    def attempt(seconds):
        with pytest.raises(RankTimeout):
            pair(deaf, timeout=seconds)
        return len(list(tmp_path.iterdir()))

    with helpers.ranks(2) as pair:
        assert with_patience(attempt, lambda deaf_by_then: deaf_by_then, (0.5, 20, 100))
        with pytest.raises(RankError, match=r"did not stop deaf\(\)(?s:.)*time.sleep"):
            pair(meet)


@pytest.mark.parametrize(
    "how, words",
    [
        (die, "rank 1 was killed by signal SIGKILL"),
        pytest.param(lambda: os._exit(7), "rank 1 left with exit code 7", marks=LONG),
    ],
)
def test_a_rank_that_ends_ends_them_all_with_the_reason(how, words):
    with helpers.ranks(2) as pair:
        pids = pair(os.getpid)
        with pytest.raises(RankError, match=words) as caught:
            pair(meet, 1, how)
        assert caught.value.rank == 1
        assert wait_until(lambda: not any(map(running, pids)), PROMPT) is not None
        with pytest.raises(RuntimeError, match=f"have ended, {words}"):
            pair(meet)


def test_a_rank_that_ends_between_calls_is_named_by_the_next():
    pair = helpers.ranks(2)
    os.kill(pair.pids[0], signal.SIGKILL)
    with pytest.raises(RankError, match="rank 0 was killed by signal SIGKILL"):
        pair(meet)
    assert "rank 0 was killed by signal SIGKILL" in repr(pair)


# -- several at once, and what is left -------------------------------------------------------------------


def test_sets_and_launches_do_not_disturb_each_other(ranks):
    with helpers.ranks(2) as pair:
        assert pair(meet) == [2.0] * 2 and ranks(meet) == [3.0] * 3 and launch(os.getpid, 1) != pair(os.getpid)[:1]
        threads = [threading.Thread(target=lambda: done.append(pair(meet))) for _ in range(4)]
        done = []
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PROMPT)
        assert done == [[2.0, 2.0]] * 4


def test_events_of_a_readers_thread_and_answers_do_not_mix():
    def chat():
        for _ in range(300):
            helpers.emit("x", text="y" * 40_000)

    seen, large = [], torch.zeros(100_000)
    with helpers.ranks(1, on_event=seen.append) as alone:
        alone(lambda: threading.Thread(target=chat).start())
        while len(seen) < 300:
            assert alone(lambda: large)[0].shape == large.shape


def test_on_event_cannot_call_the_ranks_that_it_hears_from():
    refused = []

    def call(event):
        with pytest.raises(RuntimeError, match="busy with emit"):
            pair(meet)
        refused.append(event["rank"])

    with helpers.ranks(2, on_event=call) as pair:
        pair(helpers.emit, "seen")
        assert sorted(refused) == [0, 1] and pair(meet) == [2.0, 2.0]


def test_a_call_waits_for_its_turn_and_says_so(ranks, capsys, monkeypatch, tmp_path):
    def opened(gate):
        wait_until(gate.exists, 300)
        return time.monotonic()

    say, gate = progress.waiting_for, tmp_path / "gate"
    monkeypatch.setattr(progress, "waiting_for", lambda names: gate.touch() or say(names))
    (fallback := threading.Timer(100, gate.touch)).start()  # where nothing is said, so that the test ends
    run = launch(opened, 1, gate, background=True)
    assert min(ranks(time.monotonic)) > run.result(300)[0] and run.status == "completed"
    fallback.cancel()
    assert "waiting for opened on 1 rank to end" in capsys.readouterr().out


@LONG
def test_started_as_new_processes():
    code = "import helpers, os\nwith helpers.ranks(2) as r: print(r(os.getenv, 'RANK'), r(len, bytearray(10**6)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "HELPERS_START_METHOD": "spawn"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout == "['0', '1'] [1000000, 1000000]\n", done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")
def test_calls_and_failures_leave_nothing_behind():
    def held():
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    def not_more():
        return all(now <= then for now, then in zip(sum(pair(held), held()), before, strict=True))

    large = torch.zeros(1_000_000)
    with helpers.ranks(2) as pair:
        for attempt in range(6):  # the first half warms up
            assert pair(lambda: large)[1].shape == large.shape
            with pytest.raises(RankError):
                pair(meet, attempt % 2, broken)
            if attempt == 2:
                pair(meet)
                before = sum(pair(held), held())
        assert wait_until(not_more, PROMPT) is not None, (before, pair(held), held())
