"""Image translation in the style of the CycleGAN code: --gpu_ids 0,1, a BaseModel with self.device, init_net that wraps
in DataParallel, networks saved through `.module.cpu()`, optimizers over itertools.chain."""

import argparse
import itertools
import os

import torch
import torch.nn as nn


class Options:
    def parse(self):
        parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        parser.add_argument("--gpu_ids", type=str, default="0", help="gpu ids: e.g. 0  0,1,2, 0,2. use -1 for CPU")
        parser.add_argument("--niter", type=int, default=4)
        opt = parser.parse_args()
        str_ids = opt.gpu_ids.split(",")
        opt.gpu_ids = []
        for str_id in str_ids:
            id = int(str_id)
            if id >= 0:
                opt.gpu_ids.append(id)
        if len(opt.gpu_ids) > 0:
            torch.cuda.set_device(opt.gpu_ids[0])
        return opt


def init_net(net, gpu_ids=()):
    if len(gpu_ids) > 0:
        assert torch.cuda.is_available()
        net.to(gpu_ids[0])
        net = torch.nn.DataParallel(net, gpu_ids)
    for m in net.modules():
        if isinstance(m, nn.Conv2d):
            nn.init.constant_(m.weight.data, 0.02)
    return net


class TranslationModel:
    def __init__(self, opt):
        self.gpu_ids = opt.gpu_ids
        self.device = torch.device("cuda:{}".format(self.gpu_ids[0])) if self.gpu_ids else torch.device("cpu")
        self.netG_A = init_net(nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.Tanh()), self.gpu_ids)
        self.netG_B = init_net(nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.Tanh()), self.gpu_ids)
        self.netD_A = init_net(nn.Conv2d(3, 1, 4, 2), self.gpu_ids)
        self.criterionCycle = torch.nn.L1Loss()
        parameters = itertools.chain(self.netG_A.parameters(), self.netG_B.parameters())
        self.optimizer_G = torch.optim.Adam(parameters, lr=0.002, betas=(0.5, 0.999))
        self.optimizer_D = torch.optim.Adam(self.netD_A.parameters(), lr=0.002, betas=(0.5, 0.999))

    def optimize_parameters(self, real_A, real_B):
        real_A, real_B = real_A.to(self.device), real_B.to(self.device)
        fake_B = self.netG_A(real_A)
        for param in self.netD_A.parameters():
            param.requires_grad = False
        self.optimizer_G.zero_grad()
        pred = self.netD_A(fake_B)
        self.loss_G = ((pred - 1) ** 2).mean() + 10 * self.criterionCycle(self.netG_B(fake_B), real_A)
        self.loss_G.backward()
        self.optimizer_G.step()
        for param in self.netD_A.parameters():
            param.requires_grad = True
        self.optimizer_D.zero_grad()
        self.loss_D = ((self.netD_A(real_B) - 1) ** 2).mean() + (self.netD_A(fake_B.detach()) ** 2).mean()
        self.loss_D.backward()
        self.optimizer_D.step()

    def save_networks(self, epoch):
        for name in ("G_A", "G_B", "D_A"):
            net = getattr(self, "net" + name)
            path = os.path.join(".", "%s_net_%s.pth" % (epoch, name))
            if len(self.gpu_ids) > 0 and torch.cuda.is_available():
                torch.save(net.module.cpu().state_dict(), path)
                net.cuda(self.gpu_ids[0])
            else:
                torch.save(net.cpu().state_dict(), path)


if __name__ == "__main__":
    opt = Options().parse()
    model = TranslationModel(opt)
    rng = torch.Generator().manual_seed(9)
    for epoch in range(opt.niter):
        model.optimize_parameters(torch.randn(2, 3, 8, 8, generator=rng), torch.randn(2, 3, 8, 8, generator=rng))
        print("epoch %d loss G: %.7f D: %.7f" % (epoch, model.loss_G.item(), model.loss_D.item()))
        model.save_networks("latest")
