"""The article's ten steps for PyTorch, with two models; on the CPU where there is no card."""

import sys

import torch
import torch.utils.data

import perseus.torch.horovod as hvd  # 1

hvd.init()  # 2
if torch.cuda.is_available():
    torch.cuda.set_device(hvd.local_rank())  # 3
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(hvd.rank())
model1 = torch.nn.Linear(4, 8).to(device)
model2 = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Linear(8, 2)).to(device)
optimizer = torch.optim.SGD([*model1.parameters(), *model2.parameters()], lr=0.01 * hvd.size(), momentum=0.9)  # 4
all_named_parameters = []
for name, value in model1.named_parameters():
    all_named_parameters.append((name, value))
for name, value in model2.named_parameters():
    all_named_parameters.append((name, value))
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=all_named_parameters)  # 5
all_state_dict = {}
all_state_dict.update(model1.state_dict())
all_state_dict.update(model2.state_dict())
hvd.broadcast_parameters(all_state_dict, root_rank=0)  # 6
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
train_dataset = torch.utils.data.TensorDataset(torch.randn(32, 4, generator=torch.Generator().manual_seed(1)))
train_sampler = torch.utils.data.distributed.DistributedSampler(
    train_dataset, num_replicas=hvd.size(), rank=hvd.rank()
)  # 7
loader = torch.utils.data.DataLoader(train_dataset, batch_size=4, sampler=train_sampler)
for (batch,) in loader:
    optimizer.zero_grad()
    model2(model1(batch.to(device))).square().mean().backward()
    optimizer.step()
save_checkpoint = True if hvd.rank() == 0 else False  # 9
verbose = 1 if hvd.rank() == 0 else 0
filepath = sys.argv[1]
if save_checkpoint:
    torch.save({"model": model1.state_dict(), "optimizer": optimizer.state_dict()}, filepath)
with torch.no_grad():
    kept = [parameter.clone() for parameter in model1.parameters()]
    for parameter in model1.parameters():
        parameter.zero_()
if hvd.rank() == 0:  # 10
    checkpoint = torch.load(filepath)
    model1.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
hvd.broadcast_parameters(model1.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
assert all(torch.equal(a, b) for a, b in zip(kept, model1.parameters()))
state = hvd.allgather_object([parameter.tolist() for model in (model1, model2) for parameter in model.parameters()])
assert all(each == state[0] for each in state), "the ranks differ"
print(f"rank {hvd.rank()} of {hvd.size()} has taken the ten steps\n", end="")
