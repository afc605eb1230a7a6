"""Train a small GPT on made-up sentences, sharded over the ranks (FSDP2), and save it. Three things are wrong.

torchrun --nproc-per-node 2 fsdp_three_errors.py
"""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard

from helpers.data import sets
from helpers.training.gpt import gpt, next_token_loss

STEPS, BATCH = 4, 16  # sequences of a step, on all ranks together


def sequences(text, step):
    """What this rank trains on in a step."""
    mine = BATCH // dist.get_world_size()
    first = step * BATCH
    return text[first : first + mine].long()


def shard(model):
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def train(model, optimizer, text):
    """The mean loss of the last step, over all ranks."""
    for step in range(STEPS):
        tokens = sequences(text, step)
        loss = next_token_loss(model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    mean = loss.detach()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def main():
    data = sets.load("tokens", "train")
    torch.manual_seed(0)
    model = gpt(layers=2, width=64, vocabulary=len(data.classes), length=data.length)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model = shard(model)
    loss = train(model, optimizer, data.tokens)
    if dist.get_rank() == 0:
        print(f"loss {loss:.3f} after {STEPS} steps")
        dcp.save({"model": get_model_state_dict(model)}, checkpoint_id="checkpoint")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    try:
        main()
    finally:
        dist.destroy_process_group()
