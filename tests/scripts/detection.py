"""A small detector in the style of torchvision's reference scripts: started by torchrun, an
init_distributed_mode that reads RANK, WORLD_SIZE and LOCAL_RANK, targets that are lists of dicts,
torch.cuda.amp. The pictures hold one bright box each and come from a seed."""

import argparse
import builtins as __builtin__
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.utils.data


def get_args_parser():
    parser = argparse.ArgumentParser(description="Detection training")
    parser.add_argument("--device", default="cuda", type=str, help="cuda or cpu")
    parser.add_argument("-b", "--batch-size", default=4, type=int, help="images of one GPU")
    parser.add_argument("--epochs", default=2, type=int)
    parser.add_argument("--lr", default=0.02, type=float)
    parser.add_argument("--resume", default="", type=str, help="checkpoint to go on from")
    parser.add_argument("--start_epoch", default=0, type=int)
    parser.add_argument("--dist-url", default="env://", type=str)
    parser.add_argument("--amp", action="store_true", help="torch.cuda.amp for mixed precision")
    return parser


def setup_for_distributed(is_master):
    """Only the master prints, unless `force=True`."""
    builtin_print = __builtin__.print

    def print(*args, **kwargs):
        if kwargs.pop("force", False) or is_master:
            builtin_print(*args, **kwargs)

    __builtin__.print = print


def init_distributed_mode(args):
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        args.rank = int(os.environ["RANK"])
        args.world_size = int(os.environ["WORLD_SIZE"])
        args.gpu = int(os.environ["LOCAL_RANK"])
    else:
        print("one process")
        args.distributed = False
        return
    args.distributed = True
    torch.cuda.set_device(args.gpu)
    args.dist_backend = "nccl"
    print(f"rank {args.rank} of {args.world_size} meets the others at {args.dist_url}", flush=True)
    dist.init_process_group(
        backend=args.dist_backend, init_method=args.dist_url, world_size=args.world_size, rank=args.rank
    )
    dist.barrier()
    setup_for_distributed(args.rank == 0)


def reduce_dict(input_dict):
    """The mean of every value over the ranks."""
    if not dist.is_initialized():
        return input_dict
    with torch.inference_mode():
        names = sorted(input_dict)
        values = torch.stack([input_dict[name] for name in names], dim=0)
        dist.all_reduce(values)
        values /= dist.get_world_size()
        return dict(zip(names, values, strict=True))


class Boxes(torch.utils.data.Dataset):
    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.images = 0.2 * torch.rand(count, 3, 24, 24, generator=generator)
        self.targets = []
        for index, image in enumerate(self.images):
            x, y = torch.randint(0, 12, (2,), generator=generator).tolist()
            width, height = torch.randint(4, 12, (2,), generator=generator).tolist()
            image[index % 3, y : y + height, x : x + width] = 1
            box = torch.tensor([[x, y, x + width, y + height]], dtype=torch.float32)
            self.targets.append({"boxes": box, "labels": torch.tensor([index % 3]), "image_id": index})

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], self.targets[index]


class Detector(nn.Module):
    """One box and one class a picture; returns losses in training and detections in evaluation."""

    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU()]
        self.backbone = nn.Sequential(*layers, nn.Flatten())
        self.classes, self.boxes = nn.Linear(16 * 36, 3), nn.Linear(16 * 36, 4)

    def forward(self, images, targets=None):
        features = self.backbone(torch.stack(images))
        logits, boxes = self.classes(features), 24 * self.boxes(features).sigmoid()
        if not self.training:
            return [{"boxes": b[None], "labels": label.argmax()[None]} for b, label in zip(boxes, logits, strict=True)]
        wanted = torch.cat([target["boxes"] for target in targets])
        labels = torch.cat([target["labels"] for target in targets])
        return {
            "loss_classifier": nn.functional.cross_entropy(logits, labels),
            "loss_box_reg": nn.functional.smooth_l1_loss(boxes.float() / 24, wanted / 24),
        }


def collate_fn(batch):
    return tuple(zip(*batch, strict=True))


def train_one_epoch(model, optimizer, data_loader, device, epoch, scaler=None):
    model.train()
    for images, targets in data_loader:
        images = list(image.to(device) for image in images)
        targets = [{k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in t.items()} for t in targets]
        with torch.cuda.amp.autocast(enabled=scaler is not None):
            loss_dict = model(images, targets)
            losses = sum(loss for loss in loss_dict.values())
        reduced = reduce_dict(loss_dict)
        loss_value = sum(loss for loss in reduced.values()).item()
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(losses).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            losses.backward()
            optimizer.step()
    memory = torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else 0
    print(f"epoch {epoch} loss {loss_value:.6f} max mem: {memory:.0f}")


@torch.inference_mode()
def evaluate(model, data_loader, device):
    cpu_device = torch.device("cpu")
    model.eval()
    right = torch.zeros(2, device=device)
    for images, targets in data_loader:
        images = list(img.to(device) for img in images)
        outputs = model(images)
        outputs = [{k: v.to(cpu_device) for k, v in t.items()} for t in outputs]
        hits = [o["labels"].item() == t["labels"].item() for o, t in zip(outputs, targets, strict=True)]
        right += torch.tensor([float(sum(hits)), float(len(hits))], device=device)
    if dist.is_initialized():
        dist.barrier()
        dist.all_reduce(right)
    print(f"Test: {int(right[0])} of {int(right[1])} images right")


def main(args):
    init_distributed_mode(args)
    device = torch.device(args.device)
    torch.manual_seed(11)
    dataset, dataset_test = Boxes(22, 1), Boxes(12, 2)
    if args.distributed:
        train_sampler = torch.utils.data.distributed.DistributedSampler(dataset)
        test_sampler = torch.utils.data.distributed.DistributedSampler(dataset_test, shuffle=False)
    else:
        train_sampler = torch.utils.data.SequentialSampler(dataset)
        test_sampler = torch.utils.data.SequentialSampler(dataset_test)
    batches = torch.utils.data.BatchSampler(train_sampler, args.batch_size, drop_last=True)
    data_loader = torch.utils.data.DataLoader(dataset, batch_sampler=batches, collate_fn=collate_fn)
    data_loader_test = torch.utils.data.DataLoader(dataset_test, 1, sampler=test_sampler, collate_fn=collate_fn)

    model = Detector().to(device)
    model_without_ddp = model
    if args.distributed:
        model = nn.parallel.DistributedDataParallel(model, device_ids=[args.gpu])
        model_without_ddp = model.module
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    lr_scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[1], gamma=0.5)
    scaler = torch.cuda.amp.GradScaler() if args.amp else None
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cpu")
        model_without_ddp.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        lr_scheduler.load_state_dict(checkpoint["lr_scheduler"])
        args.start_epoch = checkpoint["epoch"] + 1
        if args.amp:
            scaler.load_state_dict(checkpoint["scaler"])

    for epoch in range(args.start_epoch, args.epochs):
        if args.distributed:
            train_sampler.set_epoch(epoch)
        train_one_epoch(model, optimizer, data_loader, device, epoch, scaler)
        lr_scheduler.step()
        checkpoint = {"model": model_without_ddp.state_dict(), "optimizer": optimizer.state_dict(),
                      "lr_scheduler": lr_scheduler.state_dict(), "epoch": epoch}
        if args.amp:
            checkpoint["scaler"] = scaler.state_dict()
        if not args.distributed or args.rank == 0:
            torch.save(checkpoint, "checkpoint.pth")
        evaluate(model, data_loader_test, device)


if __name__ == "__main__":
    main(get_args_parser().parse_args())
