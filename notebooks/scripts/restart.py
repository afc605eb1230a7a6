"""Twenty steps with a checkpoint every five; if ACCIDENT is set, rank 1 kills itself before step 13, the first time."""

import os
import pathlib

import torch
import torch.distributed as dist

file = pathlib.Path(os.environ["FOLDER"]) / "checkpoint.pt"
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(20, 1).double())
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
parts = {"model": model.module, "optimizer": optimizer}
saved = torch.load(file) if file.exists() else {"step": 0, "losses": []}
for name in parts.keys() & saved.keys():  # (1) go on from what was saved
    parts[name].load_state_dict(saved[name])
first, losses = saved["step"], saved["losses"]
for step in range(first, 20):
    if os.environ["ACCIDENT"] and dist.get_rank() == 1 and step == 13 and first == 0:
        os.kill(os.getpid(), 9)
    data = torch.Generator().manual_seed(100 * step + dist.get_rank())  # (2) the batch follows from the step
    inputs = torch.randn(32, 20, generator=data, dtype=torch.float64)
    loss = (model(inputs).squeeze() - inputs[:, 0]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if dist.get_rank() == 0 and step % 5 == 4:
        state = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**state, "first": first, "step": step + 1, "losses": losses}, file.with_name("new"))
        os.replace(file.with_name("new"), file)  # (3) the whole old file or the whole new one
dist.destroy_process_group()
