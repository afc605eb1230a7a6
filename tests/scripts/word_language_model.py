"""A recurrent language model as in PyTorch's examples: batchify, truncated backpropagation, weights updated by hand, a
whole model pickled and loaded again."""

import argparse
import math

import torch
import torch.nn as nn

parser = argparse.ArgumentParser(description="RNN language model")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--bptt", type=int, default=6)
parser.add_argument("--cuda", action="store_true", help="use CUDA")
parser.add_argument("--save", type=str, default="model.pt")
args = parser.parse_args()

torch.manual_seed(1111)
if torch.cuda.is_available():
    if not args.cuda:
        print("WARNING: You have a CUDA device, so you should probably run with --cuda.")
    torch.cuda.manual_seed(1111)
use_gpu = args.cuda and torch.cuda.is_available()
device = torch.device("cuda:0" if use_gpu else "cpu")


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp=12, nhid=16, nlayers=2):
        super().__init__()
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, nlayers)
        self.decoder = nn.Linear(nhid, ntoken)
        self.nhid, self.nlayers = nhid, nlayers

    def forward(self, input, hidden):
        output, hidden = self.rnn(self.encoder(input), hidden)
        return nn.functional.log_softmax(self.decoder(output).flatten(0, 1), dim=1), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return (weight.new_zeros(self.nlayers, bsz, self.nhid), weight.new_zeros(self.nlayers, bsz, self.nhid))


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    return data.narrow(0, 0, nbatch * bsz).view(bsz, -1).t().contiguous().to(device)


def repackage_hidden(h):
    return h.detach() if isinstance(h, torch.Tensor) else tuple(repackage_hidden(v) for v in h)


text = "a model of language reads one word and guesses what comes next. " * 6
words = sorted(set(text))
train_data = batchify(torch.tensor([words.index(letter) for letter in text]), 4)
model = RNNModel(len(words)).to(device)
criterion = nn.NLLLoss()
lr = 2.0


def train(epoch):
    model.train()
    hidden, total_loss = model.init_hidden(4), 0.0
    for i in range(0, train_data.size(0) - 1, args.bptt):
        seq_len = min(args.bptt, len(train_data) - 1 - i)
        data, targets = train_data[i : i + seq_len], train_data[i + 1 : i + 1 + seq_len].view(-1)
        model.zero_grad()
        hidden = repackage_hidden(hidden)
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
        total_loss += loss.item() * seq_len
    print("| epoch {:3d} | loss {:8.6f} | ppl {:8.2f}".format(epoch, total_loss / i, math.exp(total_loss / i)))


for epoch in range(1, args.epochs + 1):
    train(epoch)
    with open(args.save, "wb") as f:
        torch.save(model, f)
with open(args.save, "rb") as f:
    model = torch.load(f, weights_only=False)
    model.rnn.flatten_parameters()
train(args.epochs + 1)
