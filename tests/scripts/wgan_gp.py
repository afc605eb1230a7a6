"""A Wasserstein GAN in the style of the well-known GAN collections: a global Tensor type, `if cuda:`, Variable, two
optimizers that take turns, noise from NumPy."""

import argparse

import numpy as np
import torch
import torch.autograd as autograd
import torch.nn as nn
from torch.autograd import Variable
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--n_epochs", type=int, default=2, help="number of epochs of training")
parser.add_argument("--batch_size", type=int, default=8, help="size of the batches")
parser.add_argument("--latent_dim", type=int, default=6, help="dimensionality of the latent space")
parser.add_argument("--n_critic", type=int, default=2, help="number of training steps for discriminator per iter")
opt = parser.parse_args()

np.random.seed(0)
torch.manual_seed(0)
cuda = True if torch.cuda.is_available() else False

generator = nn.Sequential(nn.Linear(opt.latent_dim, 16), nn.LeakyReLU(0.2, inplace=True), nn.Linear(16, 4), nn.Tanh())
discriminator = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2, inplace=True), nn.Linear(16, 1))
lambda_gp = 10

if cuda:
    generator.cuda()
    discriminator.cuda()

points = torch.as_tensor(np.random.normal(0.5, 0.1, (40, 4)), dtype=torch.float32)
dataloader = DataLoader(points, batch_size=opt.batch_size, shuffle=True)

optimizer_G = torch.optim.Adam(generator.parameters(), lr=0.002, betas=(0.5, 0.999))
optimizer_D = torch.optim.Adam(discriminator.parameters(), lr=0.002, betas=(0.5, 0.999))

Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor


def compute_gradient_penalty(D, real_samples, fake_samples):
    """Calculates the gradient penalty loss for WGAN GP"""
    alpha = Tensor(np.random.random((real_samples.size(0), 1)))
    interpolates = (alpha * real_samples + ((1 - alpha) * fake_samples)).requires_grad_(True)
    d_interpolates = D(interpolates)
    fake = Variable(Tensor(real_samples.shape[0], 1).fill_(1.0), requires_grad=False)
    gradients = autograd.grad(
        outputs=d_interpolates, inputs=interpolates, grad_outputs=fake, create_graph=True, retain_graph=True,
    )[0]  # fmt: skip
    return ((gradients.view(gradients.size(0), -1).norm(2, dim=1) - 1) ** 2).mean()


for epoch in range(opt.n_epochs):
    for i, imgs in enumerate(dataloader):
        real_imgs = Variable(imgs.type(Tensor))
        optimizer_D.zero_grad()
        z = Variable(Tensor(np.random.normal(0, 1, (imgs.shape[0], opt.latent_dim))))
        fake_imgs = generator(z)
        gradient_penalty = compute_gradient_penalty(discriminator, real_imgs.data, fake_imgs.data)
        d_loss = -torch.mean(discriminator(real_imgs)) + torch.mean(discriminator(fake_imgs))
        d_loss = d_loss + lambda_gp * gradient_penalty
        d_loss.backward()
        optimizer_D.step()
        optimizer_G.zero_grad()
        if i % opt.n_critic == 0:
            g_loss = -torch.mean(discriminator(generator(z)))
            g_loss.backward()
            optimizer_G.step()
            print("[Epoch %d] [Batch %d] [D loss: %.7f] [G loss: %.7f]" % (epoch, i, d_loss.item(), g_loss.item()))
