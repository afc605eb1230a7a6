"""The rows of `calls` for TorchAcc's article: (then, today, where, example)."""

ROWS = [
    (
        "torch.manual_seed(SEED); xm.set_rng_state(SEED)",
        "`torch.manual_seed(SEED)` before the model is built on the CPU gives every rank the same weights, so none "
        "are sent; `torch_xla.manual_seed(SEED)` seeds the device (`xm.set_rng_state` still does)",
        "xla",
        """
import torch, torch_xla
draws = []
for _ in range(2):
    torch.manual_seed(3); torch_xla.manual_seed(3)
    draws.append(torch.cat([torch.rand(4), torch.rand(4, device=torch_xla.device()).cpu()]))
assert torch.equal(*draws)
""",
    ),
    (
        "device = xm.xla_device()",
        "`device = torch_xla.device()`",
        "xla",
        """
import torch, torch_xla
assert torch.ones(2, device=torch_xla.device()).device.type == "xla"
""",
    ),
    (
        "xm.set_replication(device, [device])",
        "nothing: each process drives its own device, and XLA's runtime knows the others (the call is still there)",
        "xla",
        """
import torch, torch_xla, torch_xla.runtime as xr
assert xr.addressable_device_count() >= 1
assert torch.ones(3, device=torch_xla.device()).sum().item() == 3  # computed without it
""",
    ),
    (
        "loader = pl.MpDeviceLoader(loader, device)",
        "the same; it also ends a step with each batch. Or `images.to(device)` and your own `torch_xla.sync()`",
        "xla",
        """
import torch, torch_xla
from torch_xla.distributed import parallel_loader as pl
batches = list(pl.MpDeviceLoader([torch.ones(2), torch.zeros(2)], torch_xla.device()))
assert [batch.device.type for batch in batches] == ["xla", "xla"]
""",
    ),
    (
        "model.to(device)",
        "the same, then `torch_xla.sync()`: else the first step also computes the copies, and is compiled twice",
        "xla",
        """
import torch, torch_xla
model = torch.nn.BatchNorm1d(3).to(torch_xla.device())
torch_xla.sync()
assert model.weight.device.type == "xla"
""",
    ),
    (
        "dist.init_process_group(backend='xla', init_method='env://')",
        "`init_method='xla://'` on TPUs. On a CPU either makes every process train alone without a word: use gloo "
        "and average the gradients yourself (`helpers.xla.gradients` does both, and raises where it would go wrong)",
        "xla",
        """
import os, torch.distributed as dist
os.environ["WORLD_SIZE"] = "1"
from helpers.xla.gradients import join_xla_group
join_xla_group()
assert dist.get_backend() == "xla" and dist.get_world_size() == 1
dist.destroy_process_group()
""",
    ),
    (
        "gradients = xm._fetch_gradients(optimizer)",
        "the same; `xm.reduce_gradients(optimizer)` fetches and reduces in one call",
        "xla",
        """
import torch, torch_xla, torch_xla.core.xla_model as xm
weight = torch.ones(3, device=torch_xla.device(), requires_grad=True)
(2 * weight).sum().backward()
(gradient,) = xm._fetch_gradients(torch.optim.SGD([weight], lr=1))
assert gradient.tolist() == [2, 2, 2]
xm.reduce_gradients(torch.optim.SGD([weight], lr=1))
""",
    ),
    (
        "xm.all_reduce('sum', gradients, scale=1.0/xm.xrt_world_size())",
        "`xm.all_reduce('sum', gradients, scale=1 / xr.world_size())`; on a CPU, where that reaches no other "
        "process, `helpers.xla.gradients.average(gradients)`",
        "xla",
        """
import torch, torch_xla, torch_xla.core.xla_model as xm, torch_xla.runtime as xr
from helpers.xla.gradients import average
gradients = [torch.ones(3, device=torch_xla.device())]
xm.all_reduce("sum", gradients, scale=1 / xr.world_size())
average(gradients)
assert gradients[0].tolist() == [1, 1, 1]
""",
    ),
    (
        "xm.all_reduce(…) before scaler.unscale_(optimizer)",
        "the same order, with `torch.amp.GradScaler('xla')`: after the reduction all ranks find the same overflow",
        "xla",
        """
import torch, torch_xla, torch_xla.core.xla_model as xm
from helpers.xla.gradients import average
weight = torch.ones(3, device=torch_xla.device(), requires_grad=True)
optimizer, scaler = torch.optim.SGD([weight], lr=1), torch.amp.GradScaler("xla", init_scale=8.0)
scaler.scale((weight * weight).sum()).backward()
average(xm._fetch_gradients(optimizer))
assert weight.grad.tolist() == [16, 16, 16]
scaler.unscale_(optimizer)
assert weight.grad.tolist() == [2, 2, 2]
""",
    ),
    (
        "from torch_xla.amp import autocast, GradScaler, syncfree",
        "`from torch_xla.amp import syncfree`; `GradScaler` is gone from there, and its `autocast` does nothing on a "
        "CPU. `torch.autocast('xla')` and `torch.amp.GradScaler('xla')` work",
        "xla",
        """
import torch_xla.amp
from torch_xla.amp import syncfree
assert not hasattr(torch_xla.amp, "GradScaler") and syncfree.SGD
""",
    ),
    (
        "optimizer = syncfree.SGD(…), syncfree.Adam(…), syncfree.AdamW(…)",
        "the same; given `found_inf`, the step is left out on the device, and the host need not look",
        "xla",
        """
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
""",
    ),
    (
        "with autocast(): …",
        "`with torch.autocast('xla', torch.bfloat16): …`",
        "xla",
        """
import torch, torch_xla
images = torch.ones(1, 3, 4, 4, device=torch_xla.device())
with torch.autocast("xla", torch.bfloat16):
    outputs = torch.nn.functional.conv2d(images, torch.ones(2, 3, 3, 3, device=images.device))
assert outputs.dtype == torch.bfloat16 and outputs.float().max().item() == 27
""",
    ),
    (
        "scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()",
        "the same with `torch.amp.GradScaler('xla')`, for fp16; bf16 needs no scaler",
        "xla",
        """
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
""",
    ),
    (
        "xm.get_ordinal()",
        "`xr.global_ordinal()`, from `import torch_xla.runtime as xr`",
        "xla",
        """
import torch_xla.core.xla_model as xm, torch_xla.runtime as xr
assert xr.global_ordinal() == 0 and not hasattr(xm, "get_ordinal")
""",
    ),
    (
        "xm.xrt_world_size()",
        "`xr.world_size()`; XRT, the runtime of that name, is gone too",
        "xla",
        """
import torch_xla.core.xla_model as xm, torch_xla.runtime as xr
assert xr.world_size() == 1 and not hasattr(xm, "xrt_world_size")
""",
    ),
    (
        "xm.mark_step()",
        "`torch_xla.sync()`; the old name warns. `torch_xla.sync(wait=True)` where a clock is read",
        "xla",
        """
import torch, torch_xla, torch_xla.debug.metrics as metrics
total = torch.ones(3, device=torch_xla.device()).sum() + 1
before = metrics.counter_value("MarkStep") or 0
torch_xla.sync(wait=True)
assert metrics.counter_value("MarkStep") == before + 1 and total.item() == 4
""",
    ),
    (
        "xm.master_print(…)",
        "the same; or `if rank == 0: print(…)`",
        "xla",
        """
import io, torch_xla.core.xla_model as xm
said = io.StringIO()
xm.master_print("loss 2.3", fd=said)
assert said.getvalue() == "loss 2.3\\n"
""",
    ),
    (
        "xm.save(model.state_dict(), path)",
        "the same: it copies to the CPU and saves on rank 0 only",
        "xla",
        """
import tempfile, torch, torch_xla, torch_xla.core.xla_model as xm
with tempfile.NamedTemporaryFile() as file:
    xm.save({"weight": torch.ones(2, device=torch_xla.device())}, file.name)
    assert torch.load(file.name)["weight"].device.type == "cpu"
""",
    ),
    (
        "xm.rendezvous('name')",
        "the same on devices that XLA connects; `dist.barrier()` of a gloo group on a CPU",
        "xla",
        """
import torch_xla.core.xla_model as xm
assert xm.rendezvous("name") == [b""]
""",
    ),
    (
        "xlarun --nproc_per_node=8 script.py",
        "`torchrun --nproc_per_node=8 script.py`; from a notebook `helpers.launch(f, 8, python=helpers.xla.python())`",
        "xla",
        """
import os, pathlib, subprocess, sys, tempfile
script = "import os, torch_xla; print('rank', os.environ['RANK'], torch_xla.device().type)"
with tempfile.TemporaryDirectory() as folder:
    pathlib.Path(folder, "script.py").write_text(script)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    del clean["TORCHELASTIC_USE_AGENT_STORE"]
    said = subprocess.run([*torchrun, f"{folder}/script.py"], env=clean, check=True, capture_output=True, text=True)
assert sorted(said.stdout.splitlines()) == ["rank 0 xla", "rank 1 xla"]
""",
    ),
    (
        "--nproc_per_node=8 --amp_level=O1 --batch_size=128 --compiler-opt",
        "the same options of `python -m helpers train`, or a `helpers.RunConfig`",
        "main",
        """
from helpers import RunConfig
config = RunConfig(strategy="ddp", nproc_per_node=8, precision="O1", local_batch=128)
assert config.processes == 8 and config.global_batch == 1024
""",
    ),
]
