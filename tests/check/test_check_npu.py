"""The checks of notebook 07 accept its solutions and object to mistakes, each in words of its own."""

import os
import re
import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from exercises import assert_verdicts, cells, objection, solution

import helpers
from helpers import check
from helpers.npu.apex import amp
from helpers.npu.recorded import why_missing

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # else every rank imports pytest to find a mistake

NOTEBOOK = "07_npu_migration.ipynb"
KNOWN = dict(torch=torch, dist=dist, amp=amp)
needs_cards = pytest.mark.skipif(bool(why_missing()), reason="no card, and no compiler to make one")


@pytest.fixture(scope="module", autouse=True)
def quick_launches():
    helpers.prepare_launcher()


@pytest.mark.parametrize("name, function, cell", [
    ("placement", "placement", "npu-turn-placement"),
    pytest.param("resumed", "resume", "npu-turn-resume", marks=needs_cards),
    pytest.param("whole_accuracy", "whole_accuracy", "npu-turn-accuracy", marks=needs_cards),
])  # fmt: skip
def test_the_solution_is_right_and_the_first_attempt_is_not(name, function, cell, capsys):
    checks = type("checks", (), {function: staticmethod(getattr(check, name))})
    assert_verdicts(checks, function, NOTEBOOK, cell, capsys, **KNOWN)


def test_the_notebook_calls_these_checks():
    code = "\n".join(cells(NOTEBOOK).values())
    assert all(f"check.{name}(" in code for name in ("placement", "resumed", "whole_accuracy", "migrated"))


# -- placement ----------------------------------------------------------------------------


def place(lists, host, process, *, key=int, unlike=True, size=None, card=None, start=0):
    hosts = [sorted(cards.split(","), key=key) for cards in lists]
    world_size = sum(map(len, hosts)) if size is None else size(hosts)
    before = sum(map(len, hosts[:host])) if unlike else host * len(hosts[host])
    its_card = int(hosts[host][process]) if card is None else card(hosts[host], process)
    return world_size, start + before + process, its_card


def same_ranks_on_every_host(lists, host, process):
    world_size, _, card = place(lists, host, process)
    return world_size, process, card


def test_another_way_to_place(capsys):
    assert check.placement(lambda *where: list(place(*where))) is True


@pytest.mark.parametrize("mistake, words", [
    (lambda *where: place(*where, card=lambda cards, process: cards[process]), "A card is a number"),
    (lambda *where: place(*where, key=str), "are sorted"),
    (lambda *where: place(*where, key=lambda card: 0), "are sorted"),
    (lambda *where: place(*where, card=lambda cards, process: process), "wanted is card 4"),
    (lambda *where: place(*where, unlike=False), "count through the hosts"),
    (same_ranks_on_every_host, "another process has already"),
    (lambda *where: place(*where, size=lambda hosts: len(hosts) * len(hosts[0])), "Does every host have as many"),
    (lambda *where: place(*where, start=1), "wanted is rank 0"),
    (lambda *where: place(*where)[:2], "give world_size, rank and card"),
    (lambda *where: 3, "TypeError"),
    (lambda *where: 1 / 0, "ZeroDivisionError"),
    (3, "TypeError"),
])  # fmt: skip
def test_placement_objects_to(mistake, words, capsys):
    assert words in objection(check, "placement", mistake, capsys)


# -- whole_accuracy -----------------------------------------------------------------------


def add_up(correct, count, *, dtype=torch.float32, device="npu", share=False):
    total = torch.tensor([correct / count, 1] if share else [correct, count], dtype=dtype, device=device)
    dist.all_reduce(total)
    return total[0] / total[1]


def alone(correct, count):
    return correct / count


def on_card_0(correct, count):
    return add_up(correct, count, device="npu:0")


def as_rates(correct, count):
    return add_up(correct, count, share=True)


@needs_cards
def test_whole_numbers_add_up_as_well(capsys):
    assert check.whole_accuracy(lambda correct, count: add_up(correct, count, dtype=torch.int64)) is True


@needs_cards
@pytest.mark.parametrize("mistake, words", [
    (lambda correct, count: add_up(correct, count, device="cpu"), "cpu"),
    (lambda correct, count: add_up(correct, count, dtype=torch.float16), "count exactly"),
    (on_card_0, "npu:0"),
    (alone, "its own images"),
    (as_rates, "mean of the processes' rates"),
    (lambda correct, count: 0.5, "they answer 0.50000, 0.50000, not 0.55556."),
    (lambda correct, count: correct / 0, "ZeroDivisionError"),
    (lambda correct: 1.0, "TypeError"),
    (3, "give the check a function"),
])  # fmt: skip
def test_whole_accuracy_objects_to(mistake, words, capsys):
    assert words in objection(check, "whole_accuracy", mistake, capsys)


# -- resumed ------------------------------------------------------------------------------


def read(path, loc, model, optimizer, *, where=None, weights=True, momentum=True, scale=True, guard=True, epoch=True):
    checkpoint = torch.load(path, map_location=loc if where is None else where)
    if weights:
        model.load_state_dict(checkpoint["state_dict"])
    if momentum:
        optimizer.load_state_dict(checkpoint["optimizer"])
    if scale and (checkpoint["amp"] or not guard):
        amp.load_state_dict(checkpoint["amp"])
    return checkpoint["epoch"] if epoch else 0


@needs_cards
@pytest.mark.parametrize("where", ["cpu", "npu", lambda storage, _: storage])
def test_other_places_to_read_to(where, capsys):
    assert check.resumed(lambda *given: read(*given, where=where)) is True


@needs_cards
@pytest.mark.parametrize("mistake, words", [
    (lambda *given: read(*given, where="npu:0"), "another card than its own"),
    (lambda *given: read(*given, where={}), "another card than its own"),
    (lambda *given: read(*given, weights=False), "the weights are not"),
    (lambda *given: read(*given, momentum=False), "momentum"),
    (lambda *given: read(*given, scale=False), "the loss scale begins anew"),
    (lambda *given: read(*given, guard=False), "without mixed precision"),
    (lambda *given: read(*given, epoch=False), "the run was in epoch 5"),
    (lambda *given: 1 / 0, "ZeroDivisionError"),
    (lambda path: 5, "TypeError"),
    ("a text", "give the check a function"),
])  # fmt: skip
def test_resumed_objects_to(mistake, words, capsys):
    assert words in objection(check, "resumed", mistake, capsys)


# -- migrated -----------------------------------------------------------------------------


def scripts():
    """(the CUDA script, the solution, the first attempt) of the notebook, as texts."""
    sources, names = cells(NOTEBOOK), {}
    exec(sources["npu-turn-script-text"], names)
    exec(solution(sources["npu-turn-script-solution"]), names)
    right = names["my_script"]
    exec(re.sub(r"^check\..*$", "", sources["npu-turn-script-code"], flags=re.MULTILINE), names)
    return names["cuda_script"], right, names["my_script"]


@needs_cards
def test_the_solution_is_migrated_and_the_first_attempt_is_not(capsys):
    _, right, first = scripts()
    assert check.migrated(right) is True
    capsys.readouterr()
    assert "step 7" in objection(check, "migrated", first, capsys)


@needs_cards
def test_what_the_tool_leaves_to_the_reader(capsys):
    from helpers.migrate import migrate

    made = migrate(scripts()[0], style="modern").result
    assert "step 13" in objection(check, "migrated", made, capsys)
    assert check.migrated(made.replace("pin_memory=False", "drop_last=True")) is True


SET = 'torch.npu.set_device(int(os.environ["LOCAL_RANK"]))\n'
SPOILED = {  # what the check says: what the solution is spoilt by, (old, new) in turn
    "Who brings it": [("import torch_npu\n", "")],
    "no card of NVIDIA's": [('"hccl"', '"nccl"')],
    "CUDA_VISIBLE_DEVICES means nothing": [(SET, "")],
    "steps 9 and 15": [('wanted.to("npu")', "wanted")],
    "must be on a card": [('torch.zeros(2, device="npu")', "torch.zeros(2)"), ('.to("npu")\ndist', "\ndist")],
    "trained on the cpu": [('"npu"', '"cpu"'), ('"hccl"', '"gloo"')],
    "has used npu:": [(SET, SET.replace("int(", "1 - int("))],
    "exchanged their gradients": [("model = nn.parallel.DistributedDataParallel(model)\n", "")],
    "pinned memory": [("drop_last=True", "drop_last=True, pin_memory=True")],
    "kernels for each": [(", drop_last=True", "")],
    "the learning rates are": [("    schedule.step()\n", "")],
    "gradients in half precision": [
        ("scaler.scale(loss)", "loss"), ("scaler.step(optimizer)", "optimizer.step()"), ("scaler.update()", ""),
    ],
    "says 'accuracy": [("dist.all_reduce(total)\n", "")],
    "says 'nothing'": [("print(", "str(")],
    "Line 2 is no Python": [("\nimport os", "\nimport os)")],
    "nothing was trained": [("range(4)", "range(0)")],
}


@needs_cards
@pytest.mark.parametrize("words", SPOILED)
def test_migrated_objects_to(words, capsys):
    mistake = scripts()[1]
    for old, new in SPOILED[words]:
        assert old in mistake
        mistake = mistake.replace(old, new)
    assert words in objection(check, "migrated", mistake, capsys)


def test_migrated_wants_a_text(capsys):
    assert "the text of a script" in objection(check, "migrated", os.getcwd, capsys)


def test_without_a_compiler_a_check_says_so(monkeypatch, capsys):
    monkeypatch.setattr("helpers.check.npu.why_missing", lambda: "there is no compiler")
    for name in ("whole_accuracy", "resumed", "migrated"):
        assert "none can be had here: there is no compiler" in objection(check, name, add_up, capsys)
