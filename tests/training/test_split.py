"""A GPT in stages, and PyTorch's schedules over them."""

import pytest
import torch
from torch.distributed import pipelining

import helpers
from helpers.costmodel.splitting import CannotSplit
from helpers.training.gpt import gpt, next_token_loss
from notebooks.scripts import split

CPU = {"HELPERS_DEVICE": "cpu"}


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_the_stages_one_after_the_other_are_the_model(stages):
    torch.manual_seed(0)
    model, tokens = gpt(), torch.randint(0, 64, (2, 16))
    x = tokens
    for number in range(stages):
        x = split.stage(model, number, stages)(x)
    assert torch.equal(x, model(tokens))


@pytest.mark.parametrize(
    "wanted, hint",
    [(dict(tensor=3), "1 or 2 or 4"), (dict(pipeline=4), "1 or 2 or 3 or 6"), (dict(tensor=0), "whole number")],
)
def test_what_cannot_be_shared_evenly_is_refused(wanted, hint):
    model = gpt(layers=6)
    split.check(model, tensor=2, pipeline=3)
    with pytest.raises(CannotSplit, match=hint):
        split.check(model, **wanted)
    with pytest.raises(CannotSplit, match="Linear"):
        split.check(torch.nn.Linear(2, 2), **wanted)
    with pytest.raises(CannotSplit, match="stage 2 of 2"):
        split.stage(model, 2, 2)


def test_a_schedule_that_this_torch_lacks_is_named(monkeypatch):
    monkeypatch.delattr(pipelining, "ScheduleZBVZeroBubble", raising=False)
    with pytest.raises(CannotSplit, match="no pipeline schedule 'ZBVZeroBubble'; it has .*GPipe.* 2.7 and later"):
        split.schedule("ZBVZeroBubble", [], 4, next_token_loss)


def batch():
    tokens = torch.randint(0, 64, (8, 17), generator=torch.Generator().manual_seed(1))
    return tokens[:, :-1], tokens[:, 1:]


def alone(layers, steps=3):
    torch.manual_seed(0)
    model, (tokens, following), losses = gpt(layers, 32), batch(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for _ in range(steps):
        loss = next_token_loss(model(tokens), following)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def in_stages(name, layers, steps=3):
    with helpers.distributed() as world:
        torch.manual_seed(0)
        model, (numbers, count) = gpt(layers, 32), split.stages_of(world.rank, world.size, name)
        stages = [
            pipelining.PipelineStage(split.stage(model, number, count), number, count, world.device)
            for number in numbers
        ]
        schedule = split.schedule(name, stages, 8, next_token_loss)
        weights = [p for stage in stages for p in stage.submod.parameters()]
        optimizer = torch.optim.SGD(weights, lr=0.5, momentum=0.9)
        (tokens, following), losses, last = batch(), [], count - 1 in numbers
        for _ in range(steps):
            pieces = []
            here = dict(target=following, losses=pieces) if last else {}
            schedule.step(*[tokens] * (0 in numbers), **here)
            optimizer.step()
            optimizer.zero_grad()
            losses += [sum(piece.item() for piece in pieces)] * last
        return losses


def agrees(name, ranks, layers=4):
    answers = helpers.launch(in_stages, ranks, name, layers, threads=1, env=CPU, timeout=300)
    return next(losses for losses in answers if losses) == pytest.approx(alone(layers), abs=1e-4)


def test_a_pipeline_trains_like_one_process():
    """With plain SGD: gradients that were the sum over micro-batches instead of their mean would show."""
    assert agrees("1F1B", 2)


@pytest.mark.long
@pytest.mark.parametrize("ranks, layers", [(2, 4), (4, 8)])
@pytest.mark.parametrize("name", ["GPipe", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"])
def test_every_schedule_trains_like_one_process(name, ranks, layers):
    if not hasattr(pipelining, f"Schedule{name}"):
        pytest.skip(f"torch {torch.__version__} has no {name}")
    assert agrees(name, ranks, layers)
