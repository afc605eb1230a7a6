"""The checks of notebook 08: right answers pass, and each kind of mistake has a hint of its own."""

import json

import pytest
import torch
import torch.distributed as dist
from exercises import Checks

import helpers
import helpers.hvd.torch as hvd
from helpers import check
from helpers.hvd.core import timeline


@pytest.fixture(scope="module", autouse=True)
def quick_launches():
    helpers.prepare_launcher()


def test_a_timeline_is_read_as_it_is_written(tmp_path):
    def traced(path):
        hvd.start_timeline(path)
        for _ in range(2):
            hvd.allreduce(torch.ones(3), name="fc.weight")
        hvd.allgather(torch.ones(3), name="rows")
        hvd.stop_timeline()

    path = tmp_path / "timeline.json"
    hvd.init()
    try:
        traced(str(path))
    finally:
        hvd.shutdown()
    shown = [event["args"]["name"] for event in json.loads(path.read_text()) if event.get("ph") == "M"]
    assert shown == ["allreduce.fc.weight", "allgather.rows"]
    found = timeline.phases(path)
    assert set(found) == {"fc.weight", "rows"} and found["fc.weight"][2] <= found["rows"][0]
    assert all(ready <= began <= ended for ready, began, ended in found.values())


WEIGHTS = "hvd.broadcast_parameters(model.state_dict(), root_rank=0)"
MOMENTUM = "hvd.broadcast_optimizer_state(optimizer, root_rank=0)"
FEWEST = "fewest = hvd.allreduce(torch.tensor(len(batches)), op=hvd.Min, name='fewest')"
IN_ORDER = "in parameters] => in sorted(parameters, key=lambda pair: pair[0])]"


class TestHvd(Checks):
    notebook = "08_horovod_api.ipynb"
    known = dict(torch=torch, hvd=hvd)
    exercises = {
        "same_start": ("hvd-turn-start", "begin_alike"), "averaged_by_name": ("hvd-turn-names", "average"),
        "one_list_of_names": ("hvd-turn-models", "names"), "everybody_finishes": ("hvd-turn-join", "train"),
    }  # fmt: skip
    slow = ("same_start", "averaged_by_name", "one_list_of_names", "everybody_finishes")
    mistakes = {
        "same_start": [
            (lambda model, optimizer: None, f"{WEIGHTS} => pass"),
            (f"{WEIGHTS} => [hvd.allreduce_(p.data, name=name) for name, p in model.named_parameters()]",
             "state_dict(), root_rank=0 => state_dict(), root_rank=1"),
            f"{WEIGHTS} => [p.data.mul_(hvd.rank() == 0) for p in model.parameters()]",
            "model.state_dict() => model.named_parameters()", f"{MOMENTUM} => pass", "model.state_dict() => model",
            lambda model: None, 3,
        ],
        "averaged_by_name": [
            "(p.grad, name=name) => (p.grad)", "name=name => name=name, op=hvd.Sum",
            "name=name => name=name, op=hvd.Sum ;; synchronize(handle) => synchronize(handle).div_(2)",
            "synchronize(handle) => synchronize(handle).div_(hvd.size())",
            f"allreduce_async_ => allreduce_async ;; {IN_ORDER}",
            "allreduce_async_ => allreduce_ ;; hvd.synchronize(handle) => pass",
            lambda parameters: [dist.all_reduce(p.grad) for _, p in parameters], lambda parameters: 1 / 0,
        ],
        "one_list_of_names": [
            lambda g, d: [*g.named_parameters(), *d.named_parameters()],
            (lambda g, d: list((dict(g.named_parameters()) | dict(d.named_parameters())).items()),
             lambda g, d: list(g.named_parameters())),
            "return pairs => return pairs + pairs", 'prefix="generator" => prefix=str(id(generator))',
            lambda g, d: list(enumerate([*g.parameters(), *d.parameters()])), lambda g, d: [*g.parameters()],
            lambda g: [],
        ],
        "everybody_finishes": [
            "last = => return", "last = hvd.join() => return",
            "model(batch).square().mean().backward() => model(batch) ;; optimizer.step() => pass",
            f"for batch in batches => {FEWEST}\n    for batch in batches[:fewest]",
            lambda model, optimizer, batches: batches[7],
        ],
    }  # fmt: skip


@pytest.mark.parametrize("name, answer", [
    ("averaged_by_name", f"(p.grad, name=name) => (p.grad) ;; {IN_ORDER}"),  # an order that all agree on
    ("one_list_of_names", lambda *of: [(f"p{k}", p) for k, p in enumerate(p for m in of for p in m.parameters())]),
])  # fmt: skip
def test_other_answers_are_right(name, answer):
    assert getattr(check, name)(TestHvd.answer(name, answer)) is True
