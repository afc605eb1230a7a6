"""A detector in the style of the old SSD ports: str2bool, a default tensor type, DataParallel around the net, a collate
function that leaves the boxes of each picture in a list, `.cuda()` behind `if args.cuda`."""

import argparse

import torch
import torch.backends.cudnn as cudnn
import torch.nn as nn
import torch.nn.init as init
import torch.optim as optim
import torch.utils.data as data


def str2bool(v):
    return v.lower() in ("yes", "true", "t", "1")


parser = argparse.ArgumentParser(description="Single Shot MultiBox Detector Training With Pytorch")
parser.add_argument("--batch_size", default=4, type=int, help="Batch size for training")
parser.add_argument("--cuda", default=True, type=str2bool, help="Use CUDA to train model")
parser.add_argument("--lr", "--learning-rate", default=1e-2, type=float, help="initial learning rate")
args = parser.parse_args()

if torch.cuda.is_available():
    if args.cuda:
        torch.set_default_tensor_type("torch.cuda.FloatTensor")
    if not args.cuda:
        print("WARNING: It looks like you have a CUDA device, but aren't using CUDA.")
        torch.set_default_tensor_type("torch.FloatTensor")
else:
    args.cuda = False
    torch.set_default_tensor_type("torch.FloatTensor")


class Boxes(data.Dataset):
    """Each picture has one to three boxes: (x1, y1, x2, y2, class)."""

    def __len__(self):
        return 18

    def __getitem__(self, index):
        rng = torch.Generator("cpu").manual_seed(index)
        corners = torch.rand(1 + index % 3, 4, generator=rng, device="cpu").sort(dim=1).values
        picture = torch.randn(3, 12, 12, generator=rng, device="cpu") + corners.mean()
        return picture, torch.cat([corners, torch.full((len(corners), 1), float(index % 2), device="cpu")], 1)


def detection_collate(batch):
    """Pictures stacked on their 0 dim, annotations in a list, since their number differs."""
    return torch.stack([sample[0] for sample in batch], 0), [sample[1] for sample in batch]


class SSD(nn.Module):
    def __init__(self):
        super().__init__()
        self.vgg = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(inplace=True), nn.Flatten())
        self.loc, self.conf = nn.Linear(200, 4), nn.Linear(200, 2)

    def forward(self, x):
        x = self.vgg(x)
        return self.loc(x), self.conf(x)


class MultiBoxLoss(nn.Module):
    def __init__(self, use_gpu=True):
        super().__init__()
        self.use_gpu = use_gpu

    def forward(self, predictions, targets):
        loc_t = torch.stack([t[:, :4].mean(0) for t in targets])
        conf_t = torch.LongTensor([int(t[0, 4]) for t in targets])
        if self.use_gpu:
            loc_t, conf_t = loc_t.cuda(), conf_t.cuda()
        loc, conf = predictions
        return nn.functional.smooth_l1_loss(loc, loc_t, reduction="sum"), nn.functional.cross_entropy(conf, conf_t)


def weights_init(m):
    if isinstance(m, nn.Conv2d):
        init.constant_(m.weight.data, 0.05)
        m.bias.data.zero_()
    elif isinstance(m, nn.Linear):
        init.constant_(m.weight.data, -0.01)
        m.bias.data.zero_()


net = ssd_net = SSD()
if args.cuda:
    net = torch.nn.DataParallel(ssd_net)
    cudnn.benchmark = True
ssd_net.apply(weights_init)
if args.cuda:
    net = net.cuda()
optimizer = optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
criterion = MultiBoxLoss(args.cuda)
net.train()
data_loader = data.DataLoader(Boxes(), args.batch_size, collate_fn=detection_collate, pin_memory=True)
for iteration, (images, targets) in enumerate(data_loader):
    if args.cuda:
        images = images.cuda()
        targets = [ann.cuda() for ann in targets]
    out = net(images)
    optimizer.zero_grad()
    loss_l, loss_c = criterion(out, targets)
    loss = loss_l + loss_c
    loss.backward()
    optimizer.step()
    print("iter " + repr(iteration) + " || Loss: %.6f ||" % (loss.item()))
torch.save(net.module.state_dict() if args.cuda else net.state_dict(), "ssd.pth")
