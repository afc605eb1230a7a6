"""Train a small network on handwritten digits with DistributedDataParallel. Needs torch and scikit-learn.

    torchrun --nproc-per-node 2 train_ddp.py --epochs 3 --checkpoint digits.pt

After a crash start the same command again: it resumes after the last epoch that was saved.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset


def load_data():
    """(1437 training samples, 360 test samples): images [1, 8, 8] in 0…1 with their labels."""
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels))
    return Subset(data, range(1437)), Subset(data, range(1437, len(data)))


def build_model():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(32 * 4 * 4, 10),
    )


@torch.no_grad()
def evaluate(model, data, device):
    """Accuracy over the whole of `data`: one rank tests each sample, without padding, and the counts are added up."""
    net = model.module  # the first forward of DDP after training broadcasts buffers; a rank without a batch never joins
    for buffer in net.buffers():  # BatchNorm's statistics: rank 0's, as in the checkpoint
        dist.broadcast(buffer, 0)
    net.eval()
    counts = torch.zeros(2, dtype=torch.int64, device=device)  # right, tested
    for images, labels in DataLoader(Subset(data, range(dist.get_rank(), len(data), dist.get_world_size())), 128):
        right = net(images.to(device)).argmax(1) == labels.to(device)
        counts += torch.stack([right.sum(), right.new_tensor(len(labels), dtype=torch.int64)])
    net.train()
    dist.all_reduce(counts)
    right, tested = counts.tolist()
    if tested != len(data):
        raise RuntimeError(f"the ranks tested {tested} samples, the set has {len(data)}")
    return right / tested


def save(path, state, device):
    """Every rank calls this. Rank 0 writes the file under another name and renames it when it is complete."""
    mine = torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    random_states = [None] * dist.get_world_size()
    dist.all_gather_object(random_states, mine)  # each rank draws its own dropout
    if dist.get_rank() == 0:
        torch.save({**state, "random": random_states}, f"{path}.part")
        os.replace(f"{path}.part", path)
    dist.barrier()


def resume(path, model, optimizer, sampler, device):
    """Load the checkpoint if there is one; returns the first epoch to train. Only rank 0 needs to see the file."""
    there = dist.get_rank() == 0 and os.path.exists(path)
    found = [torch.load(path, map_location="cpu", weights_only=True) if there else None]
    dist.broadcast_object_list(found, 0)
    if (state := found[0]) is None:
        return 0
    if len(state["random"]) != dist.get_world_size():
        raise ValueError(f"{path} was saved by {len(state['random'])} ranks: start as many or use another --checkpoint")
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    sampler.seed = state["sampler_seed"]
    on_cpu, on_device = state["random"][dist.get_rank()]
    torch.set_rng_state(on_cpu)
    if on_device is not None:
        torch.cuda.set_rng_state(on_device, device)
    return state["epochs_done"]


def main(options, device):
    torch.manual_seed(options.seed + dist.get_rank())  # DDP makes the weights equal; dropout differs between ranks
    train, test = load_data()
    sampler = DistributedSampler(train, seed=options.seed)
    loader = DataLoader(train, options.batch // dist.get_world_size(), sampler=sampler, drop_last=True)
    model = DistributedDataParallel(build_model().to(device), [device.index] if device.type == "cuda" else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(resume(options.checkpoint, model, optimizer, sampler, device), options.epochs):
        sampler.set_epoch(epoch)  # with the seed, this is the whole state of the sampler between epochs
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()  # DDP averages the gradients over the ranks here
            optimizer.step()
        accuracy = evaluate(model, test, device)
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epochs_done": epoch + 1}
        save(options.checkpoint, {**state, "sampler_seed": sampler.seed}, device)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} saved: loss of rank 0 {loss.item():.4f}, test accuracy {accuracy:.1%}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64, help="samples in a step, on all ranks together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", default="digits.pt", help="file to write, and to resume from if it is there")
    options = parser.parse_args()
    enough_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])  # one for each rank, else the CPU
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if enough_gpus else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cudnn.deterministic = True  # else a resumed run may differ in the last bits
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        main(options, device)
    finally:
        dist.destroy_process_group()
