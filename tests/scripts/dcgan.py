"""A small DCGAN in the style of PyTorch's example: two models, two optimizers, BCELoss, a --cuda flag."""

import argparse

import torch
import torch.backends.cudnn as cudnn
import torch.nn as nn
import torch.nn.parallel
import torch.optim as optim
import torch.utils.data

parser = argparse.ArgumentParser()
parser.add_argument("--batchSize", type=int, default=8)
parser.add_argument("--nz", type=int, default=8, help="size of the latent vector")
parser.add_argument("--niter", type=int, default=2, help="epochs")
parser.add_argument("--lr", type=float, default=0.0002)
parser.add_argument("--cuda", action="store_true", default=False, help="use the GPU")
parser.add_argument("--ngpu", type=int, default=1, help="GPUs to use")
parser.add_argument("--netG", default="", help="generator to go on with")
parser.add_argument("--netD", default="", help="discriminator to go on with")
parser.add_argument("--resume", default="", help="optimizers and epoch to go on with")
parser.add_argument("--manualSeed", type=int, default=5)
opt = parser.parse_args()

torch.manual_seed(opt.manualSeed)
cudnn.benchmark = True
if torch.cuda.is_available() and not opt.cuda:
    print("WARNING: there is a CUDA device, --cuda would use it")

ngpu, nz = int(opt.ngpu), int(opt.nz)
device = torch.device("cuda:0" if opt.cuda else "cpu")

rings = torch.linspace(-1, 1, 16).square()
rings = (rings[:, None] + rings[None, :]).sqrt()
shifts = torch.rand(28, 1, 1, 1, generator=torch.Generator().manual_seed(0))
dataset = torch.utils.data.TensorDataset(torch.cos(6 * rings[None, None] + 6 * shifts))
dataloader = torch.utils.data.DataLoader(dataset, batch_size=opt.batchSize, shuffle=False)


def weights_init(m):
    """Small normal weights, as the DCGAN paper has them."""
    if "Conv" in m.__class__.__name__:
        nn.init.normal_(m.weight, 0.0, 0.02)


class Parallel(nn.Module):
    """Runs `main` on `ngpu` GPUs when the input is on one."""

    def __init__(self, ngpu, *layers):
        super().__init__()
        self.ngpu = ngpu
        self.main = nn.Sequential(*layers)

    def forward(self, input):
        if input.is_cuda and self.ngpu > 1:
            return nn.parallel.data_parallel(self.main, input, range(self.ngpu))
        return self.main(input)


netG = Parallel(
    ngpu,
    nn.ConvTranspose2d(nz, 16, 4, 1, 0, bias=False), nn.BatchNorm2d(16), nn.ReLU(True),
    nn.ConvTranspose2d(16, 8, 4, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(True),
    nn.ConvTranspose2d(8, 1, 4, 2, 1, bias=False), nn.Tanh(),
).to(device)  # fmt: skip
netG.apply(weights_init)
if opt.netG != "":
    netG.load_state_dict(torch.load(opt.netG))
netD = Parallel(
    ngpu,
    nn.Conv2d(1, 8, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(8, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(16, 1, 4, 1, 0, bias=False), nn.Sigmoid(), nn.Flatten(0),
).to(device)  # fmt: skip
netD.apply(weights_init)
if opt.netD != "":
    netD.load_state_dict(torch.load(opt.netD))

criterion = nn.BCELoss()
real_label, fake_label = 1.0, 0.0
optimizerD = optim.Adam(netD.parameters(), lr=opt.lr, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=opt.lr, betas=(0.5, 0.999))
first = 0
if opt.resume:
    saved = torch.load(opt.resume, map_location=device)
    optimizerD.load_state_dict(saved["optimizerD"])
    optimizerG.load_state_dict(saved["optimizerG"])
    first = saved["epoch"] + 1

for epoch in range(first, opt.niter):
    noises = torch.Generator().manual_seed(epoch)
    for data in dataloader:
        # The discriminator: log(D(x)) + log(1 - D(G(z))) shall grow.
        netD.zero_grad()
        real = data[0].to(device)
        batch_size = real.size(0)
        label = torch.full((batch_size,), real_label, dtype=real.dtype, device=device)
        errD_real = criterion(netD(real), label)
        errD_real.backward()
        noise = torch.randn(batch_size, nz, 1, 1, generator=noises).to(device)
        fake = netG(noise)
        label.fill_(fake_label)
        errD_fake = criterion(netD(fake.detach()), label)
        errD_fake.backward()
        errD = errD_real + errD_fake
        optimizerD.step()

        # The generator: log(D(G(z))) shall grow.
        netG.zero_grad()
        label.fill_(real_label)
        errG = criterion(netD(fake), label)
        errG.backward()
        optimizerG.step()
    print(f"epoch {epoch} of {opt.niter}, {len(dataloader)} batches: loss_D {errD.item():.6f} loss_G {errG.item():.6f}")

    torch.save(netG.state_dict(), f"netG_epoch_{epoch}.pth")
    torch.save(netD.state_dict(), f"netD_epoch_{epoch}.pth")
    state = {"optimizerD": optimizerD.state_dict(), "optimizerG": optimizerG.state_dict(), "epoch": epoch}
    torch.save(state, f"optimizers_epoch_{epoch}.pth")
