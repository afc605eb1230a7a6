"""A tiny character-level GPT with a Trainer class in the style of minGPT: a config object, device "auto",
AdamW, gradient clipping, and half precision by torch.cuda.amp."""

import argparse
import os
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.cuda.amp import GradScaler, autocast
from torch.nn import functional as F
from torch.utils.data import Dataset
from torch.utils.data.dataloader import DataLoader

TEXT = "the quick brown fox jumps over the lazy dog and the dog sleeps on. " * 4


class CharDataset(Dataset):
    def __init__(self, text, block_size):
        self.chars = sorted(set(text))
        self.data = [self.chars.index(character) for character in text]
        self.block_size = block_size

    def __len__(self):
        return (len(self.data) - 1) // self.block_size

    def __getitem__(self, idx):
        start = idx * self.block_size
        chunk = torch.tensor(self.data[start : start + self.block_size + 1], dtype=torch.long)
        return chunk[:-1], chunk[1:]


class GPT(nn.Module):
    """One block, with one head."""

    def __init__(self, vocab_size, block_size, n_embd=16):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.attn = nn.Linear(n_embd, 3 * n_embd)
        self.register_buffer("mask", torch.tril(torch.ones(block_size, block_size)).bool())
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx, targets):
        pos = torch.arange(idx.size(1), dtype=torch.long, device=idx.device).unsqueeze(0)
        x = self.wte(idx) + self.wpe(pos)
        q, k, v = self.attn(self.ln_1(x)).split(x.size(2), dim=2)
        att = (q @ k.transpose(-2, -1)) * x.size(2) ** -0.5
        x = x + F.softmax(att.masked_fill(~self.mask, float("-inf")), dim=-1) @ v
        x = x + self.mlp(self.ln_2(x))
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


@dataclass
class TrainerConfig:
    max_epochs: int = 2
    batch_size: int = 4
    learning_rate: float = 1e-2
    grad_norm_clip: float = 1.0
    ckpt_path: str = "gpt.pt"
    device: str = "auto"
    use_amp: bool = True


class Trainer:
    def __init__(self, config, model, train_dataset):
        self.config, self.model, self.train_dataset = config, model, train_dataset
        self.epochs_run = 0
        if config.device == "auto":
            self.device = "cuda" if torch.cuda.is_available() else "cpu"
        else:
            self.device = config.device
        self.model = self.model.to(self.device)
        self.use_amp = config.use_amp and self.device == "cuda"
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
        self.scaler = GradScaler(enabled=self.use_amp)
        print("device:", self.device)

    def save(self):
        torch.save({
            "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(), "epochs_run": self.epochs_run,
        }, self.config.ckpt_path)  # fmt: skip

    def load(self):
        snapshot = torch.load(self.config.ckpt_path, map_location=self.device)
        self.model.load_state_dict(snapshot["model"])
        self.optimizer.load_state_dict(snapshot["optimizer"])
        self.scaler.load_state_dict(snapshot["scaler"])
        self.epochs_run = snapshot["epochs_run"]

    def run(self):
        model, config = self.model, self.config
        train_loader = DataLoader(self.train_dataset, shuffle=False, pin_memory=True, batch_size=config.batch_size)
        for epoch in range(self.epochs_run, config.max_epochs):
            model.train()
            losses = []
            for batch in train_loader:
                x, y = [t.to(self.device, non_blocking=True) for t in batch]
                with autocast(enabled=self.use_amp):
                    _, self.loss = model(x, y)
                model.zero_grad(set_to_none=True)
                self.scaler.scale(self.loss).backward()
                self.scaler.unscale_(self.optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_norm_clip)
                self.scaler.step(self.optimizer)
                self.scaler.update()
                losses.append(self.loss.item())
            self.epochs_run = epoch + 1
            print(f"epoch {epoch} loss {sum(losses) / len(losses):.6f}")
            self.save()
        if self.device == "cuda":
            print(f"peak memory {torch.cuda.max_memory_allocated() / 2**20:.1f} MiB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(3)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(3)
    data = CharDataset(TEXT, block_size=12)
    trainer = Trainer(TrainerConfig(max_epochs=args.epochs), GPT(len(data.chars), data.block_size), data)
    if args.resume and os.path.exists(trainer.config.ckpt_path):
        trainer.load()
    trainer.run()
