"""The checks of notebook 08 accept its solutions and object to mistakes, each in words of its own."""

import json
import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from exercises import assert_verdicts, cells, objection

import helpers
import helpers.hvd.torch as hvd
from helpers import check
from helpers.check import ranks
from helpers.hvd.core import timeline
from helpers.hvd.lessons import elsewhere, ten_steps

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # else every rank imports pytest to find a mistake

NOTEBOOK = "08_horovod_api.ipynb"
EXERCISES = [
    ("same_start", "begin_alike", "hvd-turn-start"), ("averaged_by_name", "average", "hvd-turn-names"),
    ("one_list_of_names", "names", "hvd-turn-models"), ("everybody_finishes", "train", "hvd-turn-join"),
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def quick_launches():
    helpers.prepare_launcher()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ranks, "PATIENCE", 60)  # the machine may be busy with other tests
        yield


@pytest.mark.parametrize("name, function, cell", EXERCISES)
def test_the_solution_is_right_and_the_first_attempt_is_not(name, function, cell, capsys):
    checks = type("checks", (), {function: staticmethod(getattr(check, name))})
    assert_verdicts(checks, function, NOTEBOOK, cell, capsys, torch=torch, hvd=hvd)


def test_the_notebook_calls_these_checks():
    code = "\n".join(cells(NOTEBOOK).values())
    assert all(f"check.{name}(" in code for name, *_ in EXERCISES)


# -- same_start ---------------------------------------------------------------------------


def send_weights_to_the_mean(model, optimizer):
    for name, p in model.named_parameters():
        p.data = hvd.allreduce(p.data, name=name)


def send_from_rank_1(model, optimizer):
    hvd.broadcast_parameters(model.state_dict(), root_rank=1)


def send_other_weights(model, optimizer):
    for p in model.parameters():
        p.data = p.data if hvd.rank() == 0 else torch.zeros_like(p)


@pytest.mark.parametrize("mistake, words", [
    (lambda model, optimizer: None, "still has the weights that it began with"),
    (lambda model, optimizer: hvd.broadcast_optimizer_state(optimizer, 0), "still has the weights"),
    (send_weights_to_the_mean, "rank 0's own weights have changed"),
    (send_from_rank_1, "rank 0's own weights have changed"),
    (send_other_weights, "not rank 0's"),
    (lambda model, optimizer: hvd.broadcast_parameters(model.named_parameters(), 0), "running mean and variance"),
    (lambda model, optimizer: hvd.broadcast_parameters(model.state_dict(), 0), "momentum is not"),
    (lambda model, optimizer: hvd.broadcast_parameters(model, 0), "ValueError"),
    (lambda model: None, "TypeError"),
    (3, "give the check a function"),
])  # fmt: skip
def test_same_start_objects_to(mistake, words, capsys):
    assert words in objection(check, "same_start", mistake, capsys)


# -- averaged_by_name ---------------------------------------------------------------------


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


@pytest.mark.parametrize("mistake, words", [
    (lambda parameters: reduced(parameters, named=False), "gradients of different tensors"),
    (lambda parameters: reduced(parameters, op=hvd.Sum), "2 times too large"),
    (lambda parameters: reduced(parameters, op=hvd.Sum, divide=2), "on 3 ranks: right on 2 ranks"),
    (lambda parameters: reduced(parameters, divide=hvd.size()), "too small"),
    (result_thrown_away, "still has its own"),
    (one_after_the_other, "some ranks wait for a tensor that others never bring"),
    (lambda parameters: [dist.all_reduce(p.grad) for _, p in parameters], "ValueError"),
    (lambda parameters: 1 / 0, "ZeroDivisionError"),
])  # fmt: skip
def test_averaged_by_name_objects_to(mistake, words, capsys):
    assert words in objection(check, "averaged_by_name", mistake, capsys)


# -- one_list_of_names --------------------------------------------------------------------


def listed(*models, prefix=lambda number, model: str(number)):
    return [(f"{prefix(k, m)}.{name}", p) for k, m in enumerate(models) for name, p in m.named_parameters()]


@pytest.mark.parametrize("mistake, words", [
    (lambda g, d: [*g.named_parameters(), *d.named_parameters()], "is there 2 times"),
    (lambda g, d: list({**dict(g.named_parameters()), **dict(d.named_parameters())}.items()), "not in the list"),
    (lambda g, d: list(g.named_parameters()), "not in the list"),
    (lambda g, d: listed(g, d) + listed(g, prefix=lambda *_: "again"), "Each belongs in the list once"),
    (lambda g, d: listed(g, d, prefix=lambda _, m: id(m)), "others in each process"),
    (lambda g, d: list(enumerate([*g.parameters(), *d.parameters()])), "a name is a text"),
    (lambda g, d: [*g.parameters()], "your function raised"),
    (lambda g: [], "TypeError"),
])  # fmt: skip
def test_one_list_of_names_objects_to(mistake, words, capsys):
    assert words in objection(check, "one_list_of_names", mistake, capsys)


def test_names_by_number_are_right(capsys):
    def numbered(*models):
        return [(f"p{k}", p) for k, p in enumerate(p for model in models for p in model.parameters())]

    assert check.one_list_of_names(numbered) is True


# -- everybody_finishes -------------------------------------------------------------------


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


@pytest.mark.parametrize("mistake, words", [
    (lambda *given: trained(*given, end="join"), "hvd.join() returns a rank"),
    (lambda *given: trained(*given, end="nothing"), "some ranks wait for a tensor"),
    (lambda *given: trained(*given, steps=False), "the weights that it began with"),
    (dropped, "some batches were never used"),
    (lambda model, optimizer, batches: batches[7], "IndexError"),
])  # fmt: skip
def test_everybody_finishes_objects_to(mistake, words, capsys):
    assert words in objection(check, "everybody_finishes", mistake, capsys)


# -- what the cells are made of -----------------------------------------------------------


def test_a_script_is_edited_where_the_text_is_there_just_once():
    assert ten_steps.edited("a b c", ("a", "x"), ("c", "a")) == "x b a"
    for script in ("b", "a a"):
        with pytest.raises(ValueError, match="not once"):
            ten_steps.edited(script, ("a", "x"))


def test_a_diff_is_markdown():
    told = ten_steps.diff("one\ntwo\nthree\n", "one\n2\nthree\n")
    assert told.splitlines() == ["```diff", "…", " one", "-two", "+2", " three", "```"]


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


@pytest.mark.parametrize("name", elsewhere.LESSONS)
def test_a_lesson_is_shown_as_recorded_where_its_environment_is_not(name, monkeypatch, tmp_path):
    monkeypatch.setenv(f"HELPERS_{name.upper()}_PYTHON", str(tmp_path / "none"))
    found, said = elsewhere.run_or_show(name)
    assert said.startswith("recorded 20") and said.endswith(f"make {name}") and f"{name} " in said
    for of in (found["horovod"], found["kvstore"]) if name == "mxnet" else (found,):
        difference, equal, (first, last) = elsewhere.outcome(of)
        assert equal and difference <= 1.2e-7 and last < first


@pytest.mark.parametrize("words, status", [('echo {\\"losses\\": [2, 1]}', 0), ("echo no news", 0), ("exit 3", 3)])
def test_a_lesson_is_run_where_its_environment_is(words, status, monkeypatch, tmp_path):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{words}\n")
    python.chmod(0o755)
    monkeypatch.setenv("HELPERS_KERAS_PYTHON", str(python))
    if "losses" in words:
        assert elsewhere.run_or_show("keras") == (json.loads('{"losses": [2, 1]}'), "run here, just now")
        return
    with pytest.raises(RuntimeError, match=f"keras_fit.py ended with {status}"):
        elsewhere.run_or_show("keras")
