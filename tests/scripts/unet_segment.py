"""Segmentation in the style of the small U-Net repositories: device.type for autocast, GradScaler, channels_last,
an OutOfMemoryError that is caught, logging."""

import argparse
import logging
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim
from torch.utils.data import DataLoader, Dataset, random_split


class Discs(Dataset):
    def __init__(self, count=26):
        self.rng = torch.Generator().manual_seed(5)
        grid = torch.stack(torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij"))
        centres = torch.randint(4, 12, (count, 2, 1, 1), generator=self.rng)
        self.masks = ((grid - centres).float().norm(dim=1) < 4).long()
        self.images = self.masks[:, None] + 0.3 * torch.randn(count, 1, 16, 16, generator=self.rng)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, idx):
        return {"image": self.images[idx].float().contiguous(), "mask": self.masks[idx].long().contiguous()}


class UNet(nn.Module):
    def __init__(self, n_channels=1, n_classes=2):
        super().__init__()
        self.n_classes = n_classes
        self.down = nn.Sequential(nn.Conv2d(n_channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.deep = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(inplace=True))
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.outc = nn.Conv2d(16, n_classes, 1)

    def forward(self, x):
        skip = self.down(x)
        return self.outc(torch.cat([skip, self.up(self.deep(skip))], dim=1))


def train_model(model, device, epochs=2, batch_size=4, learning_rate=1e-3, amp=False, gradient_clipping=1.0):
    dataset = Discs()
    n_val = int(len(dataset) * 0.2)
    train_set, _ = random_split(dataset, [len(dataset) - n_val, n_val], generator=torch.Generator().manual_seed(0))
    loader_args = dict(batch_size=batch_size, num_workers=0, pin_memory=True)
    train_loader = DataLoader(train_set, shuffle=True, **loader_args)

    optimizer = optim.RMSprop(model.parameters(), lr=learning_rate, weight_decay=1e-8, momentum=0.9, foreach=True)
    scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=5)
    grad_scaler = torch.cuda.amp.GradScaler(enabled=amp)
    criterion = nn.CrossEntropyLoss() if model.n_classes > 1 else nn.BCEWithLogitsLoss()
    for epoch in range(1, epochs + 1):
        model.train()
        for batch in train_loader:
            images, true_masks = batch["image"], batch["mask"]
            images = images.to(device=device, dtype=torch.float32, memory_format=torch.channels_last)
            true_masks = true_masks.to(device=device, dtype=torch.long)
            with torch.autocast(device.type if device.type != "mps" else "cpu", enabled=amp):
                masks_pred = model(images)
                loss = criterion(masks_pred, true_masks)
                loss += F.l1_loss(F.softmax(masks_pred, dim=1)[:, 1].float(), true_masks.float())
            optimizer.zero_grad(set_to_none=True)
            grad_scaler.scale(loss).backward()
            grad_scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), gradient_clipping)
            grad_scaler.step(optimizer)
            grad_scaler.update()
            logging.info(f"epoch {epoch} loss (batch) {loss.item():.6f}")
        scheduler.step(-loss.item())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train the UNet on images and target masks")
    parser.add_argument("--epochs", "-e", metavar="E", type=int, default=2)
    parser.add_argument("--amp", action="store_true", default=False, help="Use mixed precision")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    logging.info(f"Using device {device}, cards visible: {os.environ.get('CUDA_VISIBLE_DEVICES')}")
    torch.manual_seed(1)
    model = UNet().to(memory_format=torch.channels_last)
    model.to(device=device)
    try:
        train_model(model, device, epochs=args.epochs, amp=args.amp)
    except torch.cuda.OutOfMemoryError:
        logging.error("Detected OutOfMemoryError! Consider enabling AMP (--amp) for fast and memory efficient training")
        torch.cuda.empty_cache()
