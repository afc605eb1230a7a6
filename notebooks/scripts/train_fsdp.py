"""Train a GPT that is sharded over the ranks (FSDP2) to write PyTorch's own source text. Needs torch alone.

    torchrun --nproc-per-node 2 train_fsdp.py --steps 30 --checkpoint gpt

After a crash start it again, with as many ranks as there are now: it resumes from the last checkpoint.
"""

import argparse
import os
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width, heads, recompute):
        super().__init__()
        self.heads, self.recompute = heads, recompute
        self.norm1, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        if self.recompute:  # keep x alone, and compute the rest again when backward needs it
            return checkpoint(self.compute, x, use_reentrant=False)
        return self.compute(x)

    def compute(self, x):
        n, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, blocks, width, heads, length, recompute):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(128, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, recompute) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 128, bias=False)

    def forward(self, text):
        """The mean loss of guessing each next character of `text` [N, length + 1]."""
        x = self.tokens(text[:, :-1]) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), text[:, 1:].flatten())


@torch.no_grad()
def initialise(model):
    """Draw one weight at a time, as GPT-2 does, and leave each rank its shard of rank 0's. No rank holds them all."""
    for name, weight in model.named_parameters():
        whole = torch.zeros(weight.shape, device=weight.device)
        if weight.dim() > 1:
            whole.normal_(0, 0.02)
        elif name.endswith("weight"):  # of a norm
            whole.fill_(1)
        weight.copy_(distribute_tensor(whole, weight.device_mesh, weight.placements))


def my_share(text, step, batch, length):
    """This rank's sequences. The global batch depends on the step alone, not on the number of ranks."""
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - length, (batch,), generator=generator)[dist.get_rank() :: dist.get_world_size()]
    return torch.stack([text[start : start + length + 1] for start in starts.tolist()])


def save(folder, model, optimizer, step):
    """Every rank writes its own shards. The folder gets its name when all of them are there."""
    part = folder / "part"
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=part)
    if dist.get_rank() == 0:
        part.rename(folder / f"step{step}")
        for old in folder.glob("step*"):
            if old.name != f"step{step}":
                shutil.rmtree(old)
    dist.barrier()


def resume(folder, model, optimizer):
    """Read from the last checkpoint, if there is one, what this rank holds now; returns the steps done."""
    if dist.get_rank() == 0:
        shutil.rmtree(folder / "part", ignore_errors=True)  # of a run that ended while it wrote
    dist.barrier()
    done = max((int(path.name[4:]) for path in folder.glob("step*")), default=0)
    if done:
        weights, state = get_state_dict(model, optimizer)  # how this rank's shards look, to be filled
        dcp.load({"model": weights, "optimizer": state}, checkpoint_id=folder / f"step{done}")
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    return done


def main(options, device):
    ranks = dist.get_world_size()
    if options.batch % ranks:
        raise ValueError(f"a batch of {options.batch} cannot be shared evenly by {ranks} ranks; choose another --batch")
    text = torch.tensor([min(byte, 127) for byte in Path(F.__file__).read_bytes()])
    with torch.device("meta"):  # shapes without memory: the whole model need not fit into any rank
        model = GPT(options.blocks, options.width, 4, options.length, options.recompute)
    for block in model.blocks:
        fully_shard(block)  # its weights are gathered when its forward, or its backward, begins
    fully_shard(model)  # all the rest: embeddings, last norm, head
    model.to_empty(device=device)  # memory for this rank's shards, not yet filled
    torch.manual_seed(0)
    initialise(model)  # a checkpoint, if there is one, replaces them
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  # made now, so that it updates the shards
    folder = Path(options.checkpoint)
    for step in range(resume(folder, model, optimizer), options.steps):
        optimizer.zero_grad()
        loss = model(my_share(text, step, options.batch, options.length).to(device))
        loss.backward()  # FSDP averages the gradients, and leaves each rank its shard
        optimizer.step()
        if (step + 1) % options.save_every == 0 or step + 1 == options.steps:
            save(folder, model, optimizer, step + 1)
            mean = loss.detach()
            dist.all_reduce(mean)
            held = sum(p.to_local().numel() for p in model.parameters())
            if dist.get_rank() == 0:
                print(
                    f"step {step + 1} saved by {ranks} rank(s): loss {mean.item() / ranks:.3f}, "
                    f"rank 0 holds {held:,} of {sum(p.numel() for p in model.parameters()):,} weights",
                    flush=True,
                )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--batch", type=int, default=16, help="sequences in a step, on all ranks together")
    parser.add_argument("--length", type=int, default=64, help="characters of a sequence")
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--recompute", action="store_true", help="keep a block's input only: less memory, more time")
    parser.add_argument("--checkpoint", default="gpt", help="folder to write, and to resume from")
    options = parser.parse_args()
    enough_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])  # one for each rank, else the CPU
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if enough_gpus else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        main(options, device)
    finally:
        dist.destroy_process_group()
