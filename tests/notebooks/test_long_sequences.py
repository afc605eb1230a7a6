"""Notebook 14: ring attention, Ulysses and experts give what one process gives, and send what was predicted.

And the notebooks that go on from it: a slow link, training that survives, options of FSDP, a layer in 8 bits.
"""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from answers import cells

import helpers
from helpers import launch
from helpers.cluster import twohosts
from helpers.costmodel.splitting import CannotSplit
from notebooks.scripts import diloco, experts, sequences

NAMES = {"__name__": "reader", "torch": torch, "dist": dist, "F": F}
CPU = {"env": {"HELPERS_DEVICE": "cpu"}, "threads": 1, "timeout": 300}
ROUNDING = 1e-12


@pytest.fixture(scope="module")
def hand():
    """What the notebook's cells define."""
    names = dict(NAMES)
    for cell in ("ring-pass", "ring-forward", "ring-backward", "ulysses", "expert-layer"):
        exec(cells("14_long_sequences_and_experts.ipynb")[cell], names)
    exec("def exchanged(q, k, v, order):\n    return ulysses(q, k, v)", names)  # ranks get it by value
    return names


@pytest.mark.parametrize(
    ("ranks", "order", "shape"),
    [
        (1, sequences.contiguous, (1, 1, 7, 3)),
        (2, sequences.zigzag, (3, 1, 12, 5)),
        (3, sequences.contiguous, (1, 2, 9, 1)),
        (3, sequences.zigzag, (2, 3, 1554, 7)),  # several tiles, the last one not full
    ],
)
def test_ring_attention_is_attention_and_sends_six_blocks_a_rank(hand, ranks, order, shape):
    batch, heads, length, width = shape
    block = 8 * batch * heads * length // ranks * width
    blocks = 6 * ranks - 2 if ranks > 1 else 0
    order = order(length, ranks)
    for apart, sent in launch(sequences.beside_one_process, ranks, hand["ring"], order, shape, **CPU):
        assert apart < ROUNDING
        assert sent.get("send", 0) == blocks * block


def test_ulysses_is_attention_and_sends_eight_exchanges(hand):
    shape = (2, 6, 15, 5)
    order = sequences.contiguous(15, 3)
    found = launch(sequences.beside_one_process, 3, hand["exchanged"], order, shape, **CPU)
    for apart, sent in found:
        assert apart < ROUNDING
        assert sent == {"all-to-all": 8 * 2 * 6 * 5 * 5 * 8 * 2 // 3}


@pytest.mark.parametrize(("ranks", "number", "capacity", "tokens"), [(1, 3, 4, 5), (2, 4, 22, 11), (3, 6, 2, 7)])
def test_experts_on_ranks_are_a_loop_over_all_experts(hand, ranks, number, capacity, tokens):
    found = launch(
        experts.beside_one_process, ranks, hand["route"], hand["expert_layer"], number, capacity, tokens, **CPU
    )
    for apart, dropped, sent in found:
        assert apart < ROUNDING
        assert sent == {"all-to-all": 4 * number * capacity * 6 * 8 * (ranks - 1) // ranks}
        assert (dropped == 0) == (capacity >= 2 * tokens) or ranks == 1


def test_every_rank_of_a_zigzag_ring_has_equal_work():
    pairs = [sum(of) for of in sequences.pairs(sequences.zigzag(48, 4))]
    assert len(set(pairs)) == 1 and sum(pairs) == 48 * 49 // 2
    assert len({sum(of) for of in sequences.pairs(sequences.contiguous(48, 4))}) == 4


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (lambda: sequences.contiguous(50, 4), "50 positions cannot be shared evenly by 4 ranks"),
        (lambda: sequences.zigzag(12, 4), "12 positions cannot be shared evenly by 8 pieces, two for each rank"),
        (lambda: sequences.check_heads(4, 3), "4 heads cannot be shared evenly by 3 ranks of Ulysses"),
        (lambda: experts.check(6, 4, 8), "6 experts cannot be shared evenly by 4 ranks"),
        (lambda: experts.check(4, 2, 0), "capacity 0: an expert takes a whole number"),
        (lambda: experts.check(4, 0, 3), "give a whole number, 1 or more"),
    ],
)
def test_what_cannot_be_shared_is_refused_in_words(refused, words):
    with pytest.raises(CannotSplit, match=words):
        refused()


@pytest.mark.parametrize("rate", [None, "slow", 0, -5, True, float("nan")])
@pytest.mark.parametrize("run", [lambda rate: diloco.run({}, 1, rate), lambda rate: experts.over_a_link(None, rate)])
def test_a_link_of_unknown_speed_is_refused_before_a_rank_starts(run, rate, monkeypatch):
    monkeypatch.setattr(twohosts, "launch", lambda *args, **options: pytest.fail("ranks were started"))
    with pytest.raises(ValueError, match="megabits a second"):
        run(rate)


def local_steps():
    names = {**NAMES, "diloco": diloco}
    exec(cells("more/09_slow_links.ipynb")["links-diloco"], names)
    return names["local_steps"]


def test_diloco_sends_all_weights_once_in_h_steps_and_leaves_all_ranks_with_the_same(local_steps=local_steps):
    def trained(way, steps):
        with helpers.distributed("cpu") as world:
            torch.manual_seed(0)
            model = torch.nn.Linear(6, 3)
            start = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
            model, update = way(model)
            torch.manual_seed(world.rank)
            with sequences.Sent() as sent:
                for step in range(steps):
                    model(torch.randn(4, 6)).square().mean().backward()
                    update(step + 1)
            return start, torch.cat([p.detach().flatten() for p in model.parameters()]), sent.bytes["all-reduce"]

    way = local_steps()
    for steps, every, rounds in ((6, 3, 2), (5, 5, 1), (4, 1, 4)):
        (start, first, sent), (_, other, _) = launch(trained, 2, way(every), steps, **CPU)
        assert torch.equal(first, other) and not torch.equal(first, start)
        assert sent == rounds * 21 * 4
    (start, first, _), (_, other, _) = launch(trained, 2, way(4), 3, **CPU)  # between two outer steps they differ
    assert not torch.equal(first, other)


def test_a_layer_in_8_bits_is_near_float64_and_a_row_with_a_scale_of_its_own_is_left_alone_by_a_large_one():
    names = dict(NAMES)
    exec(cells("more/04_fp8.ipynb")["fp8-code"], names)
    torch.manual_seed(0)
    x, weight = torch.randn(7, 33), torch.randn(5, 33)
    x[0] *= 1e5
    x[1] = 0
    right = x.double() @ weight.double().T
    for rows in (True, False):
        apart = (names["product"](x, weight, rows).double() - right)[1:].norm() / right[1:].norm()
        assert (apart.item() < 0.1) is rows
    x = torch.randn(7, 33, requires_grad=True)
    weight.requires_grad_()
    towards = torch.randn(7, 5)
    found = torch.autograd.grad(names["Linear8"].apply(x, weight, True), (x, weight), towards)
    for gradient, exact in zip(found, (towards @ weight, towards.T @ x), strict=True):
        assert (gradient - exact).norm() < 0.15 * exact.norm()
