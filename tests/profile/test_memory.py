"""What fills the memory in a step, against a count by hand."""

import pytest
import torch
from figures import assert_readable
from shards import needs_fsdp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

import helpers
from helpers.profile.kinds import ACTIVATIONS, CASTS, GATHERED, GRADIENTS, OTHER, PARAMETERS, STATE

BATCH, INPUTS, HIDDEN, CLASSES = 500, 100, 200, 10


def train(updates=3, dtype=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(updates):
        inputs, labels = torch.randn(BATCH, INPUTS), torch.randint(0, CLASSES, (BATCH,))
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            outputs = model(inputs)
        F.cross_entropy(outputs.float(), labels).backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_every_kind_as_counted_by_hand():
    found = helpers.memory(train, threads=1, timeout=300)
    plain = helpers.launch(train, 1, threads=1, timeout=300)[0]
    assert all(torch.equal(a, b) for a, b in zip(plain, found.answers[0], strict=True)), "it trains as without"
    weights = 4 * (INPUTS * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES)
    saved = {  # what backward needs: inputs, outputs of ReLU; log-softmax, labels (8 bytes each) and a sum
        "0": 4 * BATCH * INPUTS,
        "1": 4 * BATCH * HIDDEN,
        "outside the model": 4 * BATCH * CLASSES + 8 * BATCH + 4,
    }
    most = found.most()
    for kind in (PARAMETERS, STATE, GRADIENTS):
        assert most[kind] == pytest.approx(weights, rel=0.02), kind
    assert most[ACTIVATIONS] == pytest.approx(sum(saved.values()), rel=0.02)
    assert most[CASTS] == 0
    assert dict(found.modules) == pytest.approx(saved, rel=0.02)
    # The peak: ReLU's backward has the gradient of its outputs and makes that of its inputs; the last layer is done.
    last_layer, passing = 4 * (HIDDEN * CLASSES + CLASSES), 2 * 4 * BATCH * HIDDEN
    at_peak = 2 * weights + last_layer + saved["0"] + saved["1"] + 8 * BATCH + passing
    assert found.peak_bytes == pytest.approx(at_peak, rel=0.02) and found.peak_phase == "backward"
    assert [row["kind"] for row in found.rows()] == [PARAMETERS, STATE, GRADIENTS, ACTIVATIONS, OTHER]
    picture, alt = found.figure()
    assert_readable(picture)
    assert "backward" in alt and ACTIVATIONS in alt


def test_half_precision_halves_what_is_kept():
    full, half = (helpers.memory(train, dtype=dtype, threads=1, timeout=300).most() for dtype in (None, torch.bfloat16))
    assert half[PARAMETERS] == full[PARAMETERS]
    assert half[CASTS] == 2 * HIDDEN * CLASSES > full[CASTS] == 0
    # The first layer's input needs no gradient, so nobody keeps its weights.
    assert 0.5 < half[ACTIVATIONS] / full[ACTIVATIONS] < 0.6  # the loss stays in 32 bits


def test_a_configuration_on_two_ranks():
    found = helpers.memory(helpers.RunConfig(strategy="ddp", nproc_per_node=2, threads=1), timeout=300)
    assert len(found.answers) == 2 and found.modules["stem.1"] > 0
    assert found.most()[PARAMETERS] == found.most()[GRADIENTS] == 4 * 78042


LAYERS, WIDTH = 6, 256


def train_in_shards(give_back):
    with helpers.distributed("cpu"):
        torch.manual_seed(0)
        model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)])
        for layer in model:
            fully_shard(layer, reshard_after_forward=give_back)
        fully_shard(model, reshard_after_forward=give_back)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            model(torch.ones(8, WIDTH)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


@needs_fsdp
@pytest.mark.parametrize("give_back, layers", [(True, 1), pytest.param(False, LAYERS, marks=pytest.mark.long)])
def test_a_sharded_model_holds_its_shards_and_what_it_gathers(give_back, layers):
    layer = 4 * WIDTH * WIDTH
    found = helpers.memory(train_in_shards, 2, give_back, threads=1, timeout=300, env={"HELPERS_DEVICE": "cpu"})
    most = found.most()
    assert most[PARAMETERS] == most[GRADIENTS] == LAYERS * layer / 2
    assert most[STATE] == pytest.approx(LAYERS * layer, rel=0.01)
    assert layers * layer <= most[GATHERED] <= (layers + give_back) * layer  # of two, if the next comes early
    # Messages, and gradients on their way: at most those of a step. Without an eye on what gloo's threads free, unheard
    # of, those of all steps would add up.
    assert most[OTHER] < 2 * LAYERS * layer
