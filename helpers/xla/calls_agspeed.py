"""The rows of `calls` for AGSpeed's article: (then, today, where, example)."""

ROWS = [
    (
        "import agspeed; model = agspeed.optimize(model)",
        "`model = torch.compile(model)`, or `helpers.optimize(model)`, which measures whether that helps",
        "main",
        """
import torch
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
x = torch.randn(2, 4)
assert torch.allclose(torch.compile(model, backend="aot_eager")(x), model(x))
""",
    ),
    (
        "agspeed.optimize(model) before DistributedDataParallel(model)",
        "either order works: compile then wrap, or wrap then compile",
        "main",
        """
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
import helpers
torch.manual_seed(0)
x, linear = torch.randn(2, 4), torch.nn.Linear(4, 3)
compiled = lambda model: torch.compile(model, backend="aot_eager")
gradients = []
with helpers.distributed("cpu"):
    for model in (compiled(DDP(linear)), DDP(compiled(linear))):
        linear.zero_grad()
        model(x).square().sum().backward()
        gradients.append(linear.weight.grad.clone())
assert torch.allclose(*gradients) and gradients[0].abs().sum() > 0
""",
    ),
    (
        "TorchDynamo captures; backends are torch.jit.trace and NvFuser",
        "TorchDynamo came into torch; its backend is inductor. NvFuser is gone from torch, nothing is traced by "
        "torch.jit",
        "main",
        """
import torch._dynamo
backends = torch._dynamo.list_backends()
assert "inductor" in backends and not any("nvfuser" in name for name in backends)
""",
    ),
    (
        "the backend autotuner",
        "`helpers.optimize(model)`: it times the plans on your own training steps and checks their numbers",
        "main",
        """
import torch
from helpers.compiler import Plan, optimize
plans = [Plan("eager"), Plan("aot_eager")]
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.SiLU())
optimize(model, plans, rounds=2, cache=False, log=lambda *_: None)
for _ in range(20):
    model(torch.randn(8, 4)).sum().backward()
assert model.tuner.done and str(model.tuner.choice) in map(str, plans)
""",
    ),
    (
        "with autocast(cache_enabled=False): …",
        "plain `with torch.autocast(…)`: the cache of cast weights was in the way of torch.jit.trace inside it, and "
        "nothing is traced so any more. The example compiles under plain autocast and compares",
        "main",
        """
import torch
torch.manual_seed(0)
model, x = torch.nn.Linear(8, 8), torch.randn(4, 8)
results = []
for run in (model, torch.compile(model, backend="aot_eager")):
    for cache in (True, False):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=cache):
            outputs = run(run(x))  # the weights are used twice, so the cache has work to do
        outputs.float().square().mean().backward()
        results.append((outputs, model.weight.grad.clone()))
for outputs, gradient in results:
    assert outputs.dtype == torch.bfloat16 and torch.equal(outputs, results[0][0])
    assert torch.allclose(gradient, results[0][1], rtol=0.02, atol=1e-4)
""",
    ),
    (
        "pre-loading a library for SiLU, whose gradient TorchScript of torch 1.12 did not know",
        "nothing: what torch.compile captures is differentiated by autograd, SiLU too",
        "main",
        """
import torch
x, gradients = torch.linspace(-3, 3, 25), []
for silu in (torch.nn.SiLU(), torch.compile(torch.nn.SiLU(), backend="aot_eager")):
    points = x.clone().requires_grad_()
    silu(points).sum().backward()
    gradients.append(points.grad)
share = torch.sigmoid(x)
assert torch.allclose(gradients[1], share * (1 + x * (1 - share))) and torch.allclose(*gradients)
""",
    ),
    (
        "avoid dynamic shapes",
        "`torch._dynamo.mark_dynamic(x, 0)` before the first call compiles once for all batch sizes; or drop or pad "
        "the last batch",
        "main",
        """
import torch, torch._dynamo
compiled = []
def backend(graph, inputs):
    compiled.append(graph)
    return graph.forward
def sizes(dynamic):
    torch._dynamo.reset()
    compiled.clear()
    double = torch.compile(lambda x: 2 * x, backend=backend, dynamic=None if dynamic else False)
    for n in (8, 6, 4):
        x = torch.ones(n, 3)
        if dynamic:
            torch._dynamo.mark_dynamic(x, 0)
        assert double(x).shape == (n, 3)
    return len(compiled)
assert (sizes(False), sizes(True)) == (3, 1)
""",
    ),
    (
        "optimise only the static part of a model",
        "`model.features.compile()` compiles that part in place; names in the checkpoint stay the same",
        "main",
        """
import torch
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.SiLU())
names, x = list(model.state_dict()), torch.randn(2, 4)
expected = model(x)
model[0].compile(backend="aot_eager")
assert torch.allclose(model(x), expected) and list(model.state_dict()) == names
""",
    ),
]
