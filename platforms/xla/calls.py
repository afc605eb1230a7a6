"""Every call of the two source articles: what it was, what it is today, and an example that runs.

TorchAcc: "Accelerate distributed ResNet-50 training by TorchAcc".
TorchAcc, custom model: what that article leaves out, such as MpDeviceLoader and xlarun, from "Import a custom model to
TorchAcc" (help.aliyun.com/zh/pai/user-guide/import-a-custom-model-to-torchacc).
AGSpeed: "Use AGSpeed to accelerate PyTorch training" (help.aliyun.com/document_detail/468651.html).
added here: in none of them, and useful with any compiler.

In the texts a row is: "## " and the call as the article has it, what to write today, and indented the example.
"[main]" or "[xla]" after a call names the environment of its example where it is not that of the others.
"""

import re
import textwrap
from dataclasses import dataclass

TORCHACC = r"""
## device = xm.xla_device()
`device = torch_xla.device()`
    import torch, torch_xla
    assert torch.ones(2, device=torch_xla.device()).device.type == "xla"
## xm.set_replication(device, [device])
nothing: each process drives its own device, and XLA's runtime knows the others (the call is still there)
    import torch, torch_xla, torch_xla.runtime as xr
    assert xr.addressable_device_count() >= 1
    assert torch.ones(3, device=torch_xla.device()).sum().item() == 3  # computed without it
## model.to(device)
the same, then `torch_xla.sync()`: else the first step also computes the copies, and is compiled twice
    import torch, torch_xla
    model = torch.nn.BatchNorm1d(3).to(torch_xla.device())
    torch_xla.sync()
    assert model.weight.device.type == "xla"
## dist.init_process_group(backend='xla', init_method='env://')
`init_method='xla://'` on TPUs. On a CPU either makes every process train alone without a word: use gloo and average
the gradients yourself (`platforms.xla.gradients` does both, and raises where it would go wrong)
    import os, torch.distributed as dist
    os.environ["WORLD_SIZE"] = "1"
    from platforms.xla.gradients import join_xla_group
    join_xla_group()
    assert dist.get_backend() == "xla" and dist.get_world_size() == 1
    dist.destroy_process_group()
## gradients = xm._fetch_gradients(optimizer)
the same; `xm.reduce_gradients(optimizer)` fetches and reduces in one call
    import torch, torch_xla, torch_xla.core.xla_model as xm
    weight = torch.ones(3, device=torch_xla.device(), requires_grad=True)
    (2 * weight).sum().backward()
    (gradient,) = xm._fetch_gradients(torch.optim.SGD([weight], lr=1))
    assert gradient.tolist() == [2, 2, 2]
    xm.reduce_gradients(torch.optim.SGD([weight], lr=1))
## xm.all_reduce('sum', gradients, scale=1.0/xm.xrt_world_size())
`xm.all_reduce('sum', gradients, scale=1 / xr.world_size())`; on a CPU, where that reaches no other process,
`platforms.xla.gradients.average(gradients)`
    import torch, torch_xla, torch_xla.core.xla_model as xm, torch_xla.runtime as xr
    from platforms.xla.gradients import average
    gradients = [torch.ones(3, device=torch_xla.device())]
    xm.all_reduce("sum", gradients, scale=1 / xr.world_size())
    average(gradients)
    assert gradients[0].tolist() == [1, 1, 1]
## from torch_xla.amp import autocast, GradScaler, syncfree
`from torch_xla.amp import syncfree`; `GradScaler` is gone from there, and its `autocast` does nothing on a CPU.
`torch.autocast('xla')` and `torch.amp.GradScaler('xla')` work
    import torch_xla.amp
    from torch_xla.amp import syncfree
    assert not hasattr(torch_xla.amp, "GradScaler") and syncfree.SGD
## optimizer = syncfree.SGD(…), syncfree.Adam(…), syncfree.AdamW(…)
the same; given `found_inf`, the step is left out on the device, and the host need not look
    import torch, torch_xla
    from torch_xla.amp import syncfree
    device = torch_xla.device()
    for kind in (syncfree.SGD, syncfree.Adam, syncfree.AdamW):
        weight = torch.ones(2, device=device, requires_grad=True)
        optimizer = kind([weight], lr=0.1)
        weight.sum().backward()
        optimizer.step(found_inf=torch.tensor(1.0, device=device))
        assert weight.tolist() == [1, 1], kind
        optimizer.step(found_inf=torch.tensor(0.0, device=device))
        assert weight[0].item() < 1, kind
## with autocast(): …
`with torch.autocast('xla', torch.bfloat16): …`
    import torch, torch_xla
    images = torch.ones(1, 3, 4, 4, device=torch_xla.device())
    with torch.autocast("xla", torch.bfloat16):
        outputs = torch.nn.functional.conv2d(images, torch.ones(2, 3, 3, 3, device=images.device))
    assert outputs.dtype == torch.bfloat16 and outputs.float().max().item() == 27
## scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()
the same with `torch.amp.GradScaler('xla')`, for fp16; bf16 needs no scaler
    import torch, torch_xla
    weight = torch.ones(2, device=torch_xla.device(), requires_grad=True)
    optimizer, scaler = torch.optim.SGD([weight], lr=0.5), torch.amp.GradScaler("xla", init_scale=4.0)
    for factor in (0.5, float("inf")):  # the second gradient is not finite: no step, and half the scale
        optimizer.zero_grad()
        scaler.scale((factor * weight * weight).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert weight.tolist() == [0.5, 0.5]
    assert scaler.get_scale() == 2
## xm.get_ordinal()
`xr.global_ordinal()`, from `import torch_xla.runtime as xr`
    import torch_xla.core.xla_model as xm, torch_xla.runtime as xr
    assert xr.global_ordinal() == 0 and not hasattr(xm, "get_ordinal")
## xm.xrt_world_size()
`xr.world_size()`; XRT, the runtime of that name, is gone too
    import torch_xla.core.xla_model as xm, torch_xla.runtime as xr
    assert xr.world_size() == 1 and not hasattr(xm, "xrt_world_size")
## xm.mark_step()
`torch_xla.sync()`; the old name warns. `torch_xla.sync(wait=True)` where a clock is read
    import torch, torch_xla, torch_xla.debug.metrics as metrics
    total = torch.ones(3, device=torch_xla.device()).sum() + 1
    before = metrics.counter_value("MarkStep") or 0
    torch_xla.sync(wait=True)
    assert metrics.counter_value("MarkStep") == before + 1 and total.item() == 4
## dist.get_rank = xm.get_ordinal; dist.get_world_size = xm.xrt_world_size [main]
nothing: the functions of `torch.distributed` answer in any process group
    import torch.distributed as dist, helpers
    with helpers.distributed("cpu"):
        assert dist.get_rank() == 0 and dist.get_world_size() == 1
## if not enable_torchacc_compiler(): images = images.to(device, non_blocking=True) [main]
`images.to(device, non_blocking=True)` for both; it needs `pin_memory=True` in the loader to overlap
    import torch
    assert torch.ones(2).to("cpu", non_blocking=True).sum().item() == 2
## acc1, acc5 = accuracy(output, target, topk=(1, 5)) [main]
`(output.topk(5).indices == target[:, None]).any(1).float().mean()`; the kit evaluates top-1 on the whole test set
    import torch
    output, target = torch.eye(8), torch.tensor([0, 1, 2, 3, 4, 5, 6, 0])
    top5 = (output.topk(5).indices == target[:, None]).any(1).float().mean().item()
    assert 7 / 8 <= top5 <= 1
## batch_time = (time.time() - end) / args.log_interval; log_metrics(…) [main]
the log of `python -m helpers train --log_every=10`: a mean over the steps since the line before
    import contextlib, io
    from helpers.launcher.progress import Log
    said = io.StringIO()
    values = dict(event="step", steps=10, epoch=1, loss=1.0, images_per_s=8.0, step_s=1.0, peak_memory=0, first_step=0)
    with contextlib.redirect_stdout(said):
        log = Log(every=5)
        log.begin("run")
        log.event({**values, "step": 5, "trained_s": 10.0})
        log.event({**values, "step": 10, "trained_s": 12.5})
    assert "batch time 2.000 s" in said.getvalue() and "batch time 0.500 s" in said.getvalue()
## bash prepare.sh (a mock set like ImageNet-1k) [main]
`--data=imagenet-mock`: made-up learnable images of 224×224 pixels
    from helpers.data.recipes import RECIPES
    assert RECIPES["imagenet-mock"].side == 224
## python launch_single_task.py --nproc_per_node=8 --amp_level=O1 --compiler-opt --batch_size=128 [main]
the same options of `python -m helpers train`, or a `helpers.RunConfig`; all four lines are in notebook 06
    from helpers import RunConfig
    config = RunConfig(strategy="ddp", nproc_per_node=8, precision="O1", local_batch=128)
    assert config.processes == 8 and config.global_batch == 1024
"""

CUSTOM = r"""
## torch.manual_seed(SEED); xm.set_rng_state(SEED)
`torch.manual_seed(SEED)` before the model is built on the CPU gives every rank the same weights, so none are sent;
`torch_xla.manual_seed(SEED)` seeds the device (`xm.set_rng_state` still does)
    import torch, torch_xla
    draws = []
    for _ in range(2):
        torch.manual_seed(3); torch_xla.manual_seed(3)
        draws.append(torch.cat([torch.rand(4), torch.rand(4, device=torch_xla.device()).cpu()]))
    assert torch.equal(*draws)
## loader = pl.MpDeviceLoader(loader, device)
the same; it also ends a step with each batch. Or `images.to(device)` and your own `torch_xla.sync()`
    import torch, torch_xla
    from torch_xla.distributed import parallel_loader as pl
    batches = list(pl.MpDeviceLoader([torch.ones(2), torch.zeros(2)], torch_xla.device()))
    assert [batch.device.type for batch in batches] == ["xla", "xla"]
## xm.all_reduce(…) before scaler.unscale_(optimizer)
the same order, with `torch.amp.GradScaler('xla')`: after the reduction all ranks find the same overflow
    import torch, torch_xla, torch_xla.core.xla_model as xm
    from platforms.xla.gradients import average
    weight = torch.ones(3, device=torch_xla.device(), requires_grad=True)
    optimizer, scaler = torch.optim.SGD([weight], lr=1), torch.amp.GradScaler("xla", init_scale=8.0)
    scaler.scale((weight * weight).sum()).backward()
    average(xm._fetch_gradients(optimizer))
    assert weight.grad.tolist() == [16, 16, 16]
    scaler.unscale_(optimizer)
    assert weight.grad.tolist() == [2, 2, 2]
## xm.master_print(…)
the same; or `if rank == 0: print(…)`
    import io, torch_xla.core.xla_model as xm
    said = io.StringIO()
    xm.master_print("loss 2.3", fd=said)
    assert said.getvalue() == "loss 2.3\n"
## xm.save(model.state_dict(), path)
the same: it copies to the CPU and saves on rank 0 only
    import tempfile, torch, torch_xla, torch_xla.core.xla_model as xm
    with tempfile.NamedTemporaryFile() as file:
        xm.save({"weight": torch.ones(2, device=torch_xla.device())}, file.name)
        assert torch.load(file.name)["weight"].device.type == "cpu"
## xm.rendezvous('name')
the same on devices that XLA connects; `dist.barrier()` of a gloo group on a CPU
    import torch_xla.core.xla_model as xm
    assert xm.rendezvous("name") == [b""]
## xlarun --nproc_per_node=8 script.py
`torchrun --nproc_per_node=8 script.py`; from a notebook `helpers.launch(f, 8, python=platforms.xla.python())`
    import os, pathlib, subprocess, sys, tempfile
    script = "import os, torch_xla; print('rank', os.environ['RANK'], torch_xla.device().type)"
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "script.py").write_text(script)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
        clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
        del clean["TORCHELASTIC_USE_AGENT_STORE"]
        said = subprocess.run([*torchrun, f"{folder}/script.py"], env=clean, check=True, capture_output=True, text=True)
    assert sorted(said.stdout.splitlines()) == ["rank 0 xla", "rank 1 xla"]
"""

AGSPEED = r"""
## import agspeed; model = agspeed.optimize(model)
`model = torch.compile(model)`, or `helpers.optimize(model)`, which measures whether that helps
    import torch
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    x = torch.randn(2, 4)
    assert torch.allclose(torch.compile(model, backend="aot_eager")(x), model(x))
## the log of `import agspeed` (passes and an NvFuser backend were registered), the log of its autotuning
nothing is registered at import, `torch._dynamo.list_backends()` lists what there is; `optimize` logs its trials
    import torch._dynamo
    assert "inductor" in torch._dynamo.list_backends()
## agspeed.optimize(model) before DistributedDataParallel(model) (its prose), after it (its code)
either order works: compile then wrap, or wrap then compile
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
## TorchDynamo captures; backends are torch.jit.trace and NvFuser
TorchDynamo came into torch; its backend is inductor. NvFuser is gone from torch, nothing is traced by torch.jit
    import torch._dynamo
    backends = torch._dynamo.list_backends()
    assert "inductor" in backends and not any("nvfuser" in name for name in backends)
## the backend autotuner
`helpers.optimize(model)`: it times the plans on your own training steps and checks their numbers
    import torch
    from helpers.compiler import Plan, optimize
    plans = [Plan("eager"), Plan("aot_eager")]
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.SiLU())
    optimize(model, plans, rounds=2, cache=False, log=lambda *_: None)
    for _ in range(20):
        model(torch.randn(8, 4)).sum().backward()
    assert model.tuner.done and str(model.tuner.choice) in map(str, plans)
## from torch.cuda.amp.autocast_model import autocast; with autocast(cache_enabled=False): …
plain `with torch.autocast(…)`: the cache of cast weights was in the way of torch.jit.trace inside it, and nothing is
traced so any more. The example compiles under plain autocast and compares
    import torch
    model, x, results = torch.nn.Linear(8, 8), torch.ones(4, 8), []
    for run in (model, torch.compile(model, backend="aot_eager")):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            outputs = run(run(x))  # the weights are used twice, so the cache has work to do
        outputs.float().square().mean().backward()
        results.append((outputs, model.weight.grad.clone()))
    (eager, gradient), (compiled, same) = results
    assert torch.equal(eager, compiled) and torch.allclose(gradient, same, rtol=0.02, atol=1e-4)
## export LD_PRELOAD=…/libsymbolic_expand.so, for SiLU's gradient in TorchScript 1.12
nothing: what torch.compile captures is differentiated by autograd, SiLU too; your own operator gets its formula from
`torch.library.custom_op` and `register_autograd`
    import torch
    x = torch.linspace(-3, 3, 25, requires_grad=True)
    torch.compile(torch.nn.SiLU(), backend="aot_eager")(x).sum().backward()
    share = torch.sigmoid(x)
    assert torch.allclose(x.grad, share * (1 + x * (1 - share)))
"""

ADDED = r"""
## avoid dynamic shapes
`torch._dynamo.mark_dynamic(x, 0)` before the first call compiles once for all batch sizes; or drop or pad the last
batch
    import torch
    compiled = []
    double = torch.compile(lambda x: 2 * x, backend=lambda graph, inputs: compiled.append(graph) or graph.forward)
    for n in (8, 6, 4):
        x = torch.ones(n, 3)
        torch._dynamo.mark_dynamic(x, 0)
        assert double(x).shape == (n, 3)
    assert len(compiled) == 1
## optimise only the static part of a model
`model.features.compile()` compiles that part in place; names in the checkpoint stay the same
    import torch
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.SiLU())
    names, x = list(model.state_dict()), torch.randn(2, 4)
    expected = model(x)
    model[0].compile(backend="aot_eager")
    assert torch.allclose(model(x), expected) and list(model.state_dict()) == names
"""


@dataclass(frozen=True)
class Call:
    """One row.

    Attributes:
        source: "TorchAcc", "TorchAcc, custom model", "AGSpeed" or "added here", as above.
        then: the call as the article has it.
        today: what to write now, or why nothing is needed any more.
        where: the environment of the example, "main" (the notebooks') or "xla".
        example: code that shows today's form, or that it is not needed; it raises if that is wrong.
    """

    source: str
    then: str
    today: str
    where: str
    example: str


def _rows(source, text, where):
    for row in text.split("\n## ")[1:]:
        then, *lines = row.strip("\n").splitlines()
        marked = re.fullmatch(r"(.*) \[(main|xla)\]", then)
        then, of_example = marked.groups() if marked else (then, where)
        code = next(number for number, line in enumerate(lines) if line.startswith("    "))
        yield Call(source, then, " ".join(lines[:code]), of_example, textwrap.dedent("\n".join(lines[code:])))


CALLS = [
    *_rows("TorchAcc", TORCHACC, "xla"),
    *_rows("TorchAcc, custom model", CUSTOM, "xla"),
    *_rows("AGSpeed", AGSPEED, "main"),
    *_rows("added here", ADDED, "main"),
]


def markdown() -> str:
    """The table in Markdown, without the examples."""
    lines = ["| source | then | today |", "| --- | --- | --- |"]
    for call in CALLS:
        then, today = (text.replace("|", "\\|") for text in (call.then, call.today))
        lines.append(f"| {call.source} | `{then}` | {today} |")
    return "\n".join(lines)


def run(where) -> dict:
    """Execute all examples of one environment, in it; {index in CALLS: "" or what went wrong}."""
    outcome = {}
    for i, call in enumerate(CALLS):
        if call.where == where:
            try:
                exec(compile(call.example, f"<{call.then}>", "exec"), {"__name__": "example"})
                outcome[i] = ""
            except Exception as error:
                outcome[i] = f"{type(error).__name__}: {error}"
    return outcome
