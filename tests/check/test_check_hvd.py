"""The checks of notebook 08: right answers pass, and each kind of mistake has a hint of its own."""

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


def send_weights_to_the_mean(model, optimizer):
    for name, p in model.named_parameters():
        p.data = hvd.allreduce(p.data, name=name)


def send_from_rank_1(model, optimizer):
    hvd.broadcast_parameters(model.state_dict(), root_rank=1)


def send_other_weights(model, optimizer):
    for p in model.parameters():
        p.data = p.data if hvd.rank() == 0 else torch.zeros_like(p)


def reduced(parameters, *, divide=1, named=True, **options):
    handles = [hvd.allreduce_async_(p.grad, name=name if named else None, **options) for name, p in parameters]
    for handle, (_, p) in zip(handles, parameters, strict=True):
        hvd.synchronize(handle)
        p.grad /= divide


def one_after_the_other(parameters):
    for name, p in parameters:
        hvd.allreduce_(p.grad, name=name)


def sorted_first(parameters):
    for _, p in sorted(parameters, key=lambda pair: pair[0]):
        hvd.allreduce_(p.grad)


def result_thrown_away(parameters):
    for name, p in sorted(parameters, key=lambda pair: pair[0]):
        hvd.allreduce(p.grad, name=name)


def test_an_order_that_all_agree_on_is_right_too(capsys):
    assert check.averaged_by_name(sorted_first) is True


def listed(*models, prefix=lambda number, model: str(number)):
    return [(f"{prefix(k, m)}.{name}", p) for k, m in enumerate(models) for name, p in m.named_parameters()]


def test_names_by_number_are_right(capsys):
    def numbered(*models):
        return [(f"p{k}", p) for k, p in enumerate(p for model in models for p in model.parameters())]

    assert check.one_list_of_names(numbered) is True


def trained(model, optimizer, batches, *, end="broadcast", steps=True):
    for batch in batches:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        if steps:
            loss.backward()
            optimizer.step()
    if end != "nothing":
        last = hvd.join()
    if end == "broadcast":
        hvd.broadcast_parameters(model.state_dict(), root_rank=last)
    if end == "from rank 0":
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)


def dropped(model, optimizer, batches):
    fewest = hvd.allreduce(torch.tensor(len(batches)), op=hvd.Min, name="fewest")
    trained(model, optimizer, batches[:fewest])


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
    found = timeline.phases(path)
    assert set(found) == {"fc.weight", "rows"} and found["fc.weight"][2] <= found["rows"][0]
    assert all(ready <= began <= ended for ready, began, ended in found.values())


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
            (lambda model, optimizer: None, lambda model, optimizer: hvd.broadcast_optimizer_state(optimizer, 0)),
            (send_weights_to_the_mean, send_from_rank_1), send_other_weights,
            lambda model, optimizer: hvd.broadcast_parameters(model.named_parameters(), 0),
            lambda model, optimizer: hvd.broadcast_parameters(model.state_dict(), 0),
            lambda model, optimizer: hvd.broadcast_parameters(model, 0), lambda model: None, 3,
        ],
        "averaged_by_name": [
            lambda parameters: reduced(parameters, named=False), lambda parameters: reduced(parameters, op=hvd.Sum),
            lambda parameters: reduced(parameters, op=hvd.Sum, divide=2),
            lambda parameters: reduced(parameters, divide=hvd.size()), result_thrown_away, one_after_the_other,
            lambda parameters: [dist.all_reduce(p.grad) for _, p in parameters], lambda parameters: 1 / 0,
        ],
        "one_list_of_names": [
            lambda g, d: [*g.named_parameters(), *d.named_parameters()],
            (lambda g, d: list((dict(g.named_parameters()) | dict(d.named_parameters())).items()),
             lambda g, d: list(g.named_parameters())),
            lambda g, d: listed(g, d) + listed(g, prefix=lambda *_: "again"),
            lambda g, d: listed(g, d, prefix=lambda _, m: id(m)),
            lambda g, d: list(enumerate([*g.parameters(), *d.parameters()])), lambda g, d: [*g.parameters()],
            lambda g: [],
        ],
        "everybody_finishes": [
            lambda *given: trained(*given, end="join"), lambda *given: trained(*given, end="nothing"),
            lambda *given: trained(*given, steps=False), dropped, lambda model, optimizer, batches: batches[7],
        ],
    }  # fmt: skip
