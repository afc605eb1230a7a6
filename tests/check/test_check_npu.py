"""The checks of notebook 07: right answers pass, and each kind of mistake has a hint of its own."""

import os
import re

import pytest
import torch
import torch.distributed as dist
from exercises import Checks, cells, objection, solution

import helpers
from helpers import check
from helpers.npu.apex import amp
from helpers.npu.recorded import why_missing

NOTEBOOK = "07_npu_migration.ipynb"
needs_cards = pytest.mark.skipif(bool(why_missing()), reason="no card, and no compiler to make one")


@pytest.fixture(scope="module", autouse=True)
def quick_launches():
    helpers.prepare_launcher()


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
    assert "step 7" in objection("migrated", first, capsys)


@needs_cards
def test_what_the_tool_leaves_to_the_reader(capsys):
    from helpers.migrate import migrate

    made = migrate(scripts()[0], style="modern").result
    assert "step 13" in objection("migrated", made, capsys)
    assert check.migrated(made.replace("pin_memory=False", "drop_last=True")) is True


SET = 'torch.npu.set_device(int(os.environ["LOCAL_RANK"]))\n'
SPOILED = [  # by what the solution is spoilt: (old, new) in turn
    [("import torch_npu\n", "")],
    [('"hccl"', '"nccl"')],
    [(SET, "")],
    [('wanted.to("npu")', "wanted")],
    [('torch.zeros(2, device="npu")', "torch.zeros(2)"), ('.to("npu")\ndist', "\ndist")],
    [('"npu"', '"cpu"'), ('"hccl"', '"gloo"')],
    [(SET, SET.replace("int(", "1 - int("))],
    [("model = nn.parallel.DistributedDataParallel(model)\n", "")],
    [("drop_last=True", "drop_last=True, pin_memory=True")],
    [(", drop_last=True", "")],
    [("    schedule.step()\n", "")],
    [
        ("scaler.scale(loss)", "loss"), ("scaler.step(optimizer)", "optimizer.step()"), ("scaler.update()", ""),
    ],
    [("dist.all_reduce(total)\n", "")],
    [("print(", "str(")],
    [("\nimport os", "\nimport os)")],
    [("range(4)", "range(0)")],
]


def spoiled(changes):
    """The solution with a mistake."""
    mistake = scripts()[1]
    for old, new in changes:
        assert old in mistake
        mistake = mistake.replace(old, new)
    return mistake


def test_without_a_compiler_a_check_says_so(monkeypatch, capsys):
    monkeypatch.setattr("helpers.check.npu.why_missing", lambda: "there is no compiler")
    for name in ("whole_accuracy", "resumed", "migrated"):
        assert "none can be had here: there is no compiler" in objection(name, add_up, capsys)


class TestNpu(Checks):
    notebook = NOTEBOOK
    known = dict(torch=torch, dist=dist, amp=amp)
    exercises = {
        "placement": ("npu-turn-placement", "placement"), "resumed": ("npu-turn-resume", "resume"),
        "whole_accuracy": ("npu-turn-accuracy", "whole_accuracy"),
    }  # fmt: skip
    slow = ("resumed", "whole_accuracy", "migrated")
    marks = dict.fromkeys(slow, needs_cards)
    mistakes = {
        "placement": [
            lambda *where: place(*where, card=lambda cards, process: cards[process]),
            (lambda *where: place(*where, key=str), lambda *where: place(*where, key=lambda card: 0),
             lambda *where: place(*where, card=lambda cards, process: process)),
            lambda *where: place(*where, unlike=False), same_ranks_on_every_host,
            lambda *where: place(*where, size=lambda hosts: len(hosts) * len(hosts[0])),
            lambda *where: place(*where, start=1), lambda *where: place(*where)[:2], (lambda *where: 3, 3),
            lambda *where: 1 / 0,
        ],
        "whole_accuracy": [
            lambda correct, count: add_up(correct, count, device="cpu"),
            lambda correct, count: add_up(correct, count, dtype=torch.float16), on_card_0, alone, as_rates,
            lambda correct, count: 0.5, lambda correct, count: correct / 0, lambda correct: 1.0, 3,
        ],
        "resumed": [
            (lambda *given: read(*given, where="npu:0"), lambda *given: read(*given, where={})),
            lambda *given: read(*given, weights=False), lambda *given: read(*given, momentum=False),
            lambda *given: read(*given, scale=False), lambda *given: read(*given, guard=False),
            lambda *given: read(*given, epoch=False), lambda *given: 1 / 0, lambda path: 5, "a text",
        ],
        "migrated": [*map(spoiled, SPOILED), os.getcwd],
    }  # fmt: skip
