"""The checks of notebook 08: right answers pass, and each kind of mistake has a hint of its own."""

import json

import pytest
import torch
import torch.distributed as dist
from answers import NOTEBOOKS, Checks

import helpers
import platforms.horovod.torch as hvd
from exercises import check
from platforms.horovod.core import timeline


@pytest.fixture(scope="module", autouse=True)
def quick_launches():
    helpers.prepare_launcher()


@pytest.fixture(autouse=True)
def in_the_notebooks_folder(monkeypatch):
    monkeypatch.chdir(NOTEBOOKS)


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


DISTRIBUTED = "optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=models.named_parameters())\n"
WEIGHTS = "hvd.broadcast_parameters(models.state_dict(), root_rank=0)\n"
STATE = "hvd.broadcast_optimizer_state(optimizer, root_rank=0)\n"
MERGED = "{**encoder.state_dict(), **classifier.state_dict()}"
FEWEST = "fewest = hvd.allreduce(torch.tensor(len(batches)), op=hvd.Min, name='fewest')"
IN_ORDER = "in parameters] => in sorted(parameters, key=lambda pair: pair[0])]"


class TestHvd(Checks):
    notebook = "08_horovod_api.ipynb"
    known = dict(torch=torch, hvd=hvd)
    exercises = {
        "ten_steps": ("hvd-turn-ten", "mine"),
        "averaged_by_name": ("hvd-turn-names", "average"),
        "everybody_finishes": ("hvd-turn-join", "train"),
    }
    slow = ("ten_steps", "averaged_by_name", "everybody_finishes")
    mistakes = {
        "ten_steps": [  # in the order of the steps
            "import platforms.horovod.torch as hvd\n => ",
            "hvd.init()\n => ",
            "hvd.local_rank() => 0",
            "0.02 * hvd.size() => 0.02",
            f"{DISTRIBUTED} => ",
            (f"{WEIGHTS} => ", f"{WEIGHTS} => hvd.broadcast_parameters({{}}, root_rank=0)\n"),
            (f"models.state_dict(), root => {MERGED}, root", "models.state_dict(), root => encoder.state_dict(), root"),
            f"{STATE} => ",
            "root_rank=0 => root_rank=1",
            "sampler=sampler => shuffle=True",
            (
                "models = nn.Mod => encoder = nn.DataParallel(encoder)\nmodels = nn.Mod",
                "models = nn.Mod => classifier = nn.DataParallel(classifier)\nmodels = nn.Mod",
            ),
            "if hvd.rank() == 0:\n    kept => if True:\n    kept",
            "if hvd.rank() == 0:\n    kept => if hvd.rank() == 1:\n    kept",
            " if hvd.rank() == 0 else None => ",
            '    print(f"the last => print(f"the last',
            "if hvd.rank() == 0 and os => if os",
            f"{WEIGHTS} =>  ;; if hvd.rank() == 0 and os => {WEIGHTS}if hvd.rank() == 0 and os",
            "models.named_parameters() => [*encoder.named_parameters(), *classifier.named_parameters()]",
            (3, "no_such_file.py"),
            "gpu = => gpu = =",
        ],
        "averaged_by_name": [
            "(p.grad, name=name) => (p.grad)",
            "name=name => name=name, op=hvd.Sum",
            "name=name => name=name, op=hvd.Sum ;; synchronize(handle) => synchronize(handle).div_(2)",
            "synchronize(handle) => synchronize(handle).div_(hvd.size())",
            f"allreduce_async_ => allreduce_async ;; {IN_ORDER}",
            "allreduce_async_ => allreduce_ ;; hvd.synchronize(handle) => pass",
            lambda parameters: [dist.all_reduce(p.grad) for _, p in parameters],
            lambda parameters: 1 / 0,
        ],
        "everybody_finishes": [
            "last = => return",
            "last = hvd.join() => return",
            "model(batch).square().mean().backward() => model(batch) ;; optimizer.step() => pass",
            f"for batch in batches => {FEWEST}\n    for batch in batches[:fewest]",
            lambda model, optimizer, batches: batches[7],
        ],
    }


@pytest.mark.parametrize(
    "name, answer",
    [
        ("averaged_by_name", f"(p.grad, name=name) => (p.grad) ;; {IN_ORDER}"),  # an order that all agree on
        ("ten_steps", "models = nn => encoder = nn.DataParallel(encoder, device_ids=[hvd.local_rank()])\nmodels = nn"),
    ],
)
def test_other_answers_are_right(name, answer):
    assert getattr(check, name)(TestHvd.answer(name, answer)) is True
