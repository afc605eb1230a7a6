"""A small decoder-only transformer whose parts can be addressed: to shard, recompute, split or pipeline it.

The architecture is that of Radford et al., "Language models are unsupervised multitask learners" (2019): learned
positions, LayerNorm before attention and before the MLP, GELU, a LayerNorm before the output.
"""

import torch
import torch.nn.functional as F
from torch import nn


def next_token_loss(scores, following):
    """Mean cross entropy of scores [N, L, vocabulary] against the tokens that follow, [N, L]."""
    return F.cross_entropy(scores.flatten(0, 1), following.flatten())


class GPT(nn.Module):
    """Tokens [N, L] -> scores [N, L, vocabulary] of the token that follows each; by default 0.8 million weights.

    `embedding`, each of `blocks` and `head` take the output of the part before them, so that a pipeline's stage is
    an `nn.Sequential` of some of them.

    Args:
        layers: blocks, one after the other.
        width: numbers that describe a position between two blocks.
        heads: of the attention; they share the width evenly.
        vocabulary: different tokens.
        length: the most tokens in a sequence.

    Raises:
        ValueError: the width cannot be shared evenly by the heads.
    """

    def __init__(self, layers=4, width=128, heads=4, vocabulary=64, length=64):
        if width % heads:
            raise ValueError(f"width {width} cannot be shared evenly by {heads} heads; choose a multiple of it")
        super().__init__()
        self.embedding = Embedding(vocabulary, length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = Head(width, vocabulary)
        for name, weight in self.named_parameters():
            if weight.dim() > 1:  # small, so that the residual sum starts as little more than the embedding
                deep = name.endswith(("attention.out.weight", "mlp.down.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * layers) ** 0.5 if deep else 0.02)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


gpt = GPT  # its name in RunConfig


class Embedding(nn.Module):
    """Tokens [N, L], whole numbers -> [N, L, width]: a vector for the token plus one for its position."""

    def __init__(self, vocabulary, length, width):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)

    def forward(self, tokens):
        if tokens.is_floating_point() or tokens.dim() != 2:
            raise TypeError(
                f"gpt reads tokens, whole numbers [N, length]; it was given {tokens.dtype} {list(tokens.shape)}. "
                "Choose data='tokens', or a data set of pairs (tokens, next tokens)"
            )
        there, most = tokens.shape[1], self.positions.num_embeddings
        if there > most:
            raise ValueError(f"a sequence has {there} tokens, gpt was made for {most}; make it with length={there}")
        return self.tokens(tokens) + self.positions(torch.arange(there, device=tokens.device))


class Block(nn.Module):
    """[N, L, width] -> the same: attention, then an MLP, each added to what it was given."""

    def __init__(self, width, heads, causal=True):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads, causal)
        self.norm2, self.mlp = nn.LayerNorm(width), MLP(width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Attention(nn.Module):
    """Each position looks at all others, or with `causal` at itself and those before it.

    The outputs of `qkv` are ordered by head, and the number of heads follows from their number: where `qkv` is split
    by its outputs among devices, each of them computes whole heads, and nothing here changes.
    """

    def __init__(self, width, heads, causal):
        super().__init__()
        self.width_of_head, self.causal = width // heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        n, length, _ = x.shape
        qkv = self.qkv(x).view(n, length, -1, 3, self.width_of_head)
        q, k, v = qkv.permute(3, 0, 2, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(n, length, -1))


class MLP(nn.Module):
    """Four times the width, GELU, and back."""

    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Head(nn.Module):
    """[N, L, width] -> scores [N, L, vocabulary]."""

    def __init__(self, width, vocabulary):
        super().__init__()
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x):
        return self.out(self.norm(x))
