"""`launch(…, on=…)`: what is the Supervisor's is the same on every engine, and what cannot be is refused at once."""

import os
import pickle
import sys
import time
from unittest.mock import patch

import faults
import pytest
import torch
import torch.distributed as dist

import helpers
from helpers import LauncherError, RankError, RankTimeout, RunConfig, compare, launch, run
from helpers.cluster import engines, node


class Nodes:
    """An engine whose nodes are in this process: what becomes of their ranks is pickled, as on the way from others."""

    def __init__(self, nodes=2):
        self.nodes = nodes

    def check(self, nprocs):
        self.plans = node.layout(nprocs, self.nodes)

    def start(self, nprocs, message):
        store = node.listen()
        place = {"address": "127.0.0.1", "port": store.getsockname()[1], "threads": 1}
        self.here = [
            node.Node(number, {**plan, **place}, message.head, message.file, None if number else store)
            for number, plan in enumerate(self.plans)
        ]
        self.orders, self.news = [], [("waiting", "a node is busy"), ("started", {}, "here")]

    def events(self, timeout):
        orders, self.orders, news, self.news = self.orders, [], self.news, []
        yield from news
        for one in self.here:
            yield from pickle.loads(pickle.dumps(one.step(orders, timeout / self.nodes)))

    def signal(self, number, ranks):
        self.orders.append(("signal", number, set(ranks)))

    def tell(self, rank, *message):
        self.orders.append(("tell", rank, *message))

    def close(self):
        for one in getattr(self, "here", ()):
            one.engine.close()


class Scripted:
    """An engine that only says what it was given, one event at a time."""

    def __init__(self, script=(), pause=0.0):
        self.script, self.pause, self.closed = list(script), pause, False

    def check(self, nprocs):
        pass

    def start(self, nprocs, message):
        pass

    def events(self, timeout):
        time.sleep(self.pause)
        if self.script:
            yield self.script.pop(0)

    def signal(self, number, ranks):
        self.script = [("exit", rank, -number, "") for rank in ranks]

    def tell(self, rank, *message):
        pass

    def close(self):
        self.closed = True


@pytest.fixture(autouse=True)
def this_process_stays_as_it_is(monkeypatch):
    """A node takes over the notebook's environment, folder and path."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(os.getcwd())
    with patch.dict(os.environ):
        yield


def test_ranks_of_two_nodes_are_one_world_and_print_and_return_here(capsys):
    def total(more):
        with helpers.distributed() as world:
            value = torch.ones(1) * (world.rank + 1)
            dist.all_reduce(value)
            print("local rank", world.local_rank)
            helpers.emit("seen")
            return value.item() + more, [host.ranks for host in world.hosts], os.environ.get("COLOUR")

    events = []
    made = launch(total, 4, 5, on=Nodes, nodes=2, env={"COLOUR": "red"}, on_event=events.append)
    assert made == [(15.0, [(0, 1), (2, 3)], "red")] * 4
    assert sorted(event["rank"] for event in events) == [0, 1, 2, 3]
    out = capsys.readouterr().out
    assert all(f"[rank {rank}] local rank {rank % 2}" in out for rank in range(4))


@pytest.mark.parametrize("fault", faults.FAULTS)
@pytest.mark.parametrize("engine", [{}, {"on": Nodes, "nodes": 2}], ids=["this machine", "two nodes"])
def test_a_fault(fault, engine):
    faults.error_of(fault, **engine)


def test_the_time_in_a_queue_is_not_that_of_the_run():
    waits = [("waiting", "a node is busy")] * 30 + [("started", {}, "n1")] + [("refused", "the end")]
    with pytest.raises(LauncherError, match="the end"):
        launch(print, 1, on=lambda: Scripted(waits, 0.01), timeout=0.2)
    with pytest.raises(RankTimeout):
        launch(print, 1, on=lambda: Scripted([("started", {}, "n1")], 0.01), timeout=0.2)


def test_why_a_rank_was_lost_is_in_its_error():
    lost = [("started", {}, "n1"), ("exit", 1, None, "a node of its job failed; launch it again")]
    with pytest.raises(
        RankError, match=r"^rank 1 was lost: a node of its job failed; launch it again; the other ranks"
    ):
        launch(print, 2, on=lambda: Scripted(lost))


def test_a_training_run_on_two_nodes_leaves_the_record_of_one(tmp_path, monkeypatch):
    monkeypatch.setenv("HELPERS_RESULTS", str(tmp_path))
    config = RunConfig(strategy="ddp", nnodes=2, steps=4, model="silu_mlp", evaluate=False, device="cpu")
    record = run(config, on=Nodes)
    assert record["status"] == "completed" and record["environment"]["engine"]["nodes"] == 2
    assert [host["ranks"] for host in record["measured"]["hosts"]] == [[0], [1]]
    assert record["environment"]["machine"]["kind"] == "cpu" and "machine" not in record["measured"]
    with pytest.raises(ValueError, match="takes 2 hosts, and this is one of them; give on="):
        run(config)
    with pytest.raises(TypeError, match="on= needs devices="):
        compare(on=Nodes)


def takes_nodes(nodes):
    return nodes


REFUSED = {
    "no such engine": (dict(on="sluurm"), ValueError, "give 'slurm'"),
    "no name": (dict(on=7), TypeError, "name of an engine"),
    "no such option": (dict(on="slurm:colour=red"), TypeError, "no option colour; it has nodes, partition"),
    "an interpreter": (dict(on=Nodes, python="python3.1"), (TypeError, ValueError), "python"),
    "uneven": (dict(on=Nodes, nodes=3), ValueError, "4 ranks cannot be split evenly over 3 nodes; choose 6"),
    "no node": (dict(on=Nodes, nodes=0), ValueError, "nodes is 0"),
    "no minutes": (dict(on="slurm", time=0), ValueError, "time is 0"),
    "no core": (dict(on="slurm", cores=0), ValueError, "cores is 0"),
    "no rank": (dict(on=Nodes, nprocs=0), ValueError, "at least 1 rank"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_before_anything_is_queued(case, monkeypatch):
    options, kind, message = REFUSED[case]
    monkeypatch.setattr(Nodes, "start", lambda *_: pytest.fail("it was started"))
    with pytest.raises(kind, match=message):
        launch(print, **{"nprocs": 4, **options})


def test_an_option_that_is_also_an_argument_of_the_function_is_refused():
    with pytest.raises(TypeError, match="nodes= is an option of on=.* and an argument of takes_nodes, too"):
        launch(takes_nodes, 1, nodes=2, on=Nodes)
    assert launch(takes_nodes, 1, 7, on=lambda: Nodes(1)) == [7]


def test_an_engine_that_cannot_be_used_here_says_why(monkeypatch):
    monkeypatch.setenv("PATH", "")
    found = engines()
    assert set(found) == {"slurm"}
    for name, why in found.items():
        assert "not installed; run `pip install" in why or "start" in why
        with pytest.raises(ValueError, match=f"on='{name}' cannot be used here: ") as caught:
            launch(print, 1, on=name)
        assert why in str(caught.value)


def test_places_that_other_machines_cannot_see_are_known(tmp_path):
    assert "temporary folder" in node.not_shared("/tmp/notebooks") or "memory" in node.not_shared("/tmp/notebooks")
    assert "memory" in node.not_shared("/dev/shm/notebooks")


def test_objects_in_a_file_are_read_once_and_whole(tmp_path):
    out, into = node.Outbox(tmp_path / "file"), node.Inbox(tmp_path / "file")
    out.send(1, "two")
    assert into.read() == [1, "two"] and into.read() == []
    whole = node.SIZE.pack(5) + b"\x80\x04K\x07."
    for part in (whole[:3], whole[3:10], whole[10:]):
        assert into.read() == []
        out.file.write(part)
        out.file.flush()
    assert into.read() == [7]
