"""The tuner: only right plans are taken, training goes on as if nothing had happened, and the fastest wins."""

import copy
import pickle
import random
import threading

import cloudpickle
import numpy
import plans
import pytest
import torch
from torch import nn

import helpers
from helpers.compiler import Plan, optimize, trials
from helpers.compiler.trials import Candidate


@pytest.fixture(autouse=True)
def only_pauses_take_time(monkeypatch):
    monkeypatch.setattr(trials, "time", plans.clock)
    torch.manual_seed(0)
    torch._dynamo.reset()


def quietly(model, *candidates, **settings):
    return optimize(model, list(candidates), **{"rounds": 2, "log": None, **settings})


def outcome(model, name):
    return next((row["status"], row["why"]) for row in model.tuner.rows() if row["plan"] == name)


# Wrong plans


@pytest.mark.parametrize("fault", plans.FAULTS)
def test_a_planted_fault_is_found_and_training_goes_on_as_in_eager(fault):
    expected = plans.conv_net()
    model = copy.deepcopy(expected)
    inputs = torch.randn(8, 3, 8, 8)
    quietly(model, getattr(plans, fault))
    losses = plans.train(model, inputs)
    status, why = outcome(model, fault)
    assert status == plans.FAULTS[fault] and why
    assert model.tuner.choice == Plan()
    assert losses == plans.train(expected, inputs, steps=len(losses))


def test_an_error_in_backward_reaches_the_reader_and_the_plan_is_dropped():
    model = quietly(plans.conv_net(), plans.fails_in_backward)
    inputs = torch.randn(4, 3, 8, 8)
    with pytest.raises(RuntimeError, match="the second time"):
        plans.train(model, inputs)
    plans.train(model, inputs)
    assert outcome(model, "fails_in_backward")[0] == "failed"
    assert model.tuner.choice == Plan()


def test_the_models_own_error_is_the_readers_and_training_goes_on():
    """In the step that is watched, where plans are checked, and where they are timed."""

    class Moody(nn.Linear):
        well = True

        def forward(self, x):
            if not self.well:
                self.well = True
                raise RuntimeError("not today")
            return super().forward(x)

    for steps in (0, 1, 2):
        model, inputs = quietly(Moody(4, 4), plans.slow), torch.randn(2, 4)
        plans.train(model, inputs, steps=steps)
        model.well = False
        with pytest.raises(RuntimeError, match="not today"):
            model(inputs)
        plans.train(model, inputs)
        assert model.tuner.choice == Plan() and (steps == 1) == ("not today" in str(model.tuner))


# Nothing is touched


@pytest.mark.parametrize("steps", [1, 12])
def test_training_while_plans_are_tried_is_bitwise_that_of_eager(steps):
    inputs, loss = torch.randint(0, 20, (6, 5)), lambda outputs: outputs["scores"].square().mean()
    trained = []
    for tuned in (False, True):
        torch.manual_seed(1)
        model = plans.Everything()
        if tuned:
            quietly(model, plans.same, plans.slow, rounds=3)
        losses = plans.train(model, inputs, steps=steps, loss=loss)
        trained.append((losses, model.state_dict(), torch.get_rng_state()))
    torch.testing.assert_close(trained[1], trained[0], rtol=0, atol=0)


class Stateful(nn.Module):
    """What `kind` says changes in each forward pass, and the outputs depend on it."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.layer, self.count, self.seen = kind, nn.Linear(16, 4), 0, []
        self.register_buffer("centre", torch.zeros(4))
        if kind == "weight norm":
            nn.utils.weight_norm(self.layer)
        if kind == "spectral norm":
            nn.utils.parametrizations.spectral_norm(self.layer)
        if kind == "hook":
            seen = []
            self.layer.register_forward_hook(lambda *_: seen.append(1))
            self.layer.register_forward_hook(lambda _, __, output: output * (1 + len(seen)))
        if kind == "lock":
            self.lock = threading.Lock()

    def forward(self, x):
        factor = 1.0
        if self.kind == "random":
            factor = random.random() + numpy.random.rand() + torch.rand(1)
        if self.kind == "global":
            OUTSIDE["count"] += 1
            factor = 1 + OUTSIDE["count"] / 10
        self.count += 1
        found = self.layer(x) * factor * min(1.0, 0.1 * self.count)
        if self.kind == "buffer":
            self.centre = 0.9 * self.centre + 0.1 * found.detach().mean(0)
        self.seen.append(found.mean())
        return found - self.centre


OUTSIDE = {"count": 0}
STATES = {"hook": "seen", "global": "OUTSIDE", "lock": "lock"}  # those that no copy holds: what the table says


@pytest.mark.parametrize("kind", ["buffer", "random", "weight norm", "spectral norm", *STATES])
def test_what_forward_changes_is_changed_once_a_step(kind):
    trained, steps = [], 5
    for tuned in (True, False):
        OUTSIDE["count"] = 0
        for seed in (random.seed, numpy.random.seed, torch.manual_seed):
            seed(1)
        model = Stateful(kind)
        if tuned:
            tuner = quietly(model, plans.same).tuner
        losses = plans.train(model, torch.randn(8, 16), steps=steps)
        steps = len(losses)
        drawn = random.random(), numpy.random.rand(), torch.get_rng_state()
        trained.append((losses, model.state_dict(), model.count, len(model.seen), OUTSIDE["count"], *drawn))
    torch.testing.assert_close(trained[0], trained[1], rtol=0, atol=0)
    assert STATES.get(kind, "") in str(tuner) and (kind in STATES) == ("stays in eager" in str(tuner))


def penalised(model, x):
    outputs = model(x)
    gradients = torch.autograd.grad(outputs.sum(), list(model.parameters()), create_graph=True)
    return outputs.square().mean() + sum(g.square().mean() for g in gradients)


LOOPS = {
    "triplet": lambda model, x: nn.functional.triplet_margin_loss(model(x), model(x + 1), model(-x)),
    "recurrent": lambda model, x: model(model(model(model(model(x))))).square().mean(),
    "evaluated between": lambda model, x: (model.eval()(x), model.train()(x).square().mean())[1],
    "differentiated twice": penalised,
}


@pytest.mark.parametrize("loop", LOOPS)
def test_a_step_is_all_its_forward_and_backward_passes(loop):
    expected, inputs = plans.Pauses(), torch.randn(8, 16)
    model = quietly(copy.deepcopy(expected), plans.fewer)
    losses = plans.train(model, inputs, steps=40, whole=LOOPS[loop])
    assert losses == plans.train(expected, inputs, steps=len(losses), whole=LOOPS[loop])
    twice = loop == "differentiated twice"
    assert str(model.tuner.choice) == ("eager" if twice else "fewer") and ("create_graph" in str(model.tuner)) == twice


def test_without_training_there_is_nothing_to_try():
    model, inputs = quietly(plans.conv_net(), plans.fails_to_compile), torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        model(inputs)
    model.eval()
    model(inputs)
    frozen = quietly(plans.conv_net().requires_grad_(False), plans.fails_to_compile)
    frozen(inputs)
    assert model.tuner.rows() == frozen.tuner.rows() == [] and not model.tuner.done


# The fastest wins


def test_the_fastest_right_plan_is_chosen():
    model = quietly(plans.Pauses(), plans.slow, plans.fewer, plans.same, plans.off_by_5_percent, rounds=5)
    plans.train(model, torch.randn(8, 16))
    rows = {row["plan"]: row for row in model.tuner.rows()}
    assert str(model.tuner.choice) == "fewer" and rows["fewer"]["status"] == "chosen"
    assert rows["slow"]["status"] == "slower" and rows["off_by_5_percent"]["step_s"] is None
    assert rows["fewer"]["speed_up_low"] <= rows["fewer"]["speed_up"] <= rows["fewer"]["speed_up_high"]
    assert "chose fewer" in str(model.tuner)


def test_a_plan_pays_after_as_many_steps_as_its_compilation_costs():
    eager = Candidate(Plan(), samples={1: 1.0, 2: 1.0, 3: 3.0})
    for seconds, speed_up, pays in ((0.5, 2, 6), (2.0, 0.5, None)):
        row = Candidate(Plan("inductor"), compile_s=3.0, samples={1: seconds, 2: seconds, 4: 9.0}).row(eager)
        assert (row["speed_up"], row["break_even"]) == (speed_up, pays), "of the rounds that both were timed in"


# Shapes


def test_without_the_cache_inductor_compiles_anew():
    counters = torch._dynamo.utils.counters
    for cache in (True, True, False):
        torch._dynamo.reset()
        counters.clear()
        Plan("inductor", cache=cache).make(lambda x: torch.relu(x * 2 + 1))(torch.randn(8))
    assert not any("cache" in name for name in counters["inductor"])
    model = quietly(nn.Linear(2, 2), "inductor", cache=False)
    assert model.tuner.plans == [Plan(), Plan("inductor", cache=False)]


def test_other_shapes_are_not_timed_and_run_without_the_compiler_and_the_reader_is_told_once():
    compiled, said, model = [], [], plans.Pauses()

    def counting(graph, inputs):
        compiled.append(graph)
        return plans.fewer(graph, inputs)

    optimize(model, [counting], rounds=2, log=said.append)
    while not model.tuner.done:
        for size in (8, 3):
            model(torch.randn(size, 16)).sum().backward()
    before = len(said)
    assert str(model.tuner.choice) == "counting"
    for size in (5, 3, 5, 8, 3):
        inputs = torch.randn(size, 16)
        torch.testing.assert_close(model(inputs), model.tuner.forward(inputs))
    assert len(compiled) == 1 and len(said) <= before + 1 and sum("another shape" in line for line in said) == 1


# The model stays the reader's


def test_state_dict_keys_copies_and_pickles():
    model = plans.Pauses()
    keys = list(model.state_dict())
    quietly(model, plans.fewer)
    inputs = torch.randn(8, 16)
    plans.train(model, inputs)
    assert list(model.state_dict()) == keys and str(model.tuner.choice) == "fewer"
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), cloudpickle.loads(cloudpickle.dumps(model))):
        assert other.tuner.choice == model.tuner.choice and other.tuner is not model.tuner
        with torch.no_grad():
            for p in other.parameters():
                p.zero_()
        assert not other(inputs).any(), "a copy computes with its own weights"
        assert model(inputs).any()
    quietly(model, plans.same)  # starts again
    assert not model.tuner.done and not isinstance(model.tuner.forward, type(model.tuner))


def test_wrong_arguments_are_refused_before_anything_is_tried():
    compiled = torch.compile(nn.Linear(1, 1), backend="eager")  # other backends import the whole compiler
    for model in (torch.ones(1), nn.DataParallel(nn.Linear(1, 1)), compiled):
        with pytest.raises(TypeError):
            optimize(model)
    for error, arguments in ((ValueError, {"rounds": 0}), (TypeError, {"plans": [3]}), (ValueError, {"bf16": True})):
        with pytest.raises(error):
            optimize(nn.Linear(1, 1), **{"plans": ["eager"], **arguments})


# Ranks


def on_ranks(order, plan_names, only_on_rank_1=None):
    """Train 2 ranks under DDP with `optimize` before or after wrapping, or without ("eager")."""
    trials.time = plans.clock
    with helpers.distributed("cpu") as world:
        torch.manual_seed(0)
        model = plans.Pauses()
        inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(world.rank))
        tried = [getattr(plans, name) for name in plan_names]
        if only_on_rank_1 and world.rank == 1:
            tried[0] = getattr(plans, only_on_rank_1)
            tried[0].__name__ = plan_names[0]
        settings = dict(rounds=3, log=None)
        if order == "before":
            optimize(model, tried, **settings)
        wrapped = nn.parallel.DistributedDataParallel(model)
        if order == "after":
            assert optimize(wrapped, tried, **settings) is wrapped
        losses = plans.train(wrapped, inputs, steps=10 if order == "eager" else 60)[:10]
        chosen = None if order == "eager" else (str(model.tuner.choice), model.tuner.rows())
        return losses, chosen, list(wrapped.module.state_dict())


@pytest.mark.parametrize("order", ["after", pytest.param("before", marks=pytest.mark.long)])
def test_under_ddp_both_orders_train_as_eager_and_all_ranks_agree(order):
    eager = helpers.launch(on_ranks, 2, "eager", [], timeout=600, threads=1)
    tuned = helpers.launch(on_ranks, 2, order, ["slow", "fewer", "same"], timeout=600, threads=1)
    for (losses, chosen, keys), (expected, _, names) in zip(tuned, eager, strict=True):
        assert losses == pytest.approx(expected[: len(losses)], rel=1e-5)
        assert chosen[0] == "fewer" and keys == names
    assert tuned[0][1] == tuned[1][1], "the same table on both ranks"


@pytest.mark.parametrize(
    "fault",
    ["off_by_5_percent", pytest.param("fails_at_step_3", marks=pytest.mark.long)],
)
def test_a_plan_that_fails_on_one_rank_is_dropped_on_all(fault):
    answers = helpers.launch(on_ranks, 2, "before", ["fewer"], fault, timeout=600, threads=1)
    assert [chosen[0] for _, chosen, _ in answers] == ["eager", "eager"]
    assert answers[0][1][1][1]["status"] in ("rejected", "failed")
    assert "rank 1" in answers[0][1][1][1]["why"]
