"""The kit's own transformer, its text, and what is refused of either."""

import subprocess
import sys
from itertools import pairwise

import pytest
import torch
from shards import needs_fsdp
from torch import nn
from toys import float64_gpt, toy_text

import helpers
from helpers import RunConfig, report
from helpers.comparison.comparison import Comparison
from helpers.data import grammar, prepare, sets
from helpers.records import read
from helpers.training import models
from helpers.training.gpt import gpt, next_token_loss


def test_a_token_depends_on_those_before_it_only():
    torch.manual_seed(0)
    model, tokens = float64_gpt(), toy_text()[0][:4][0]
    changed = tokens.clone()
    changed[:, 9:] = 0
    difference = (model(tokens) - model(changed)).abs().amax((0, 2))
    assert difference[:9].max() <= 1e-14 and difference[9:].min() > 1e-4


def test_its_parts_in_a_row_are_the_model():
    torch.manual_seed(0)
    model, tokens = float64_gpt(), toy_text()[0][:4][0]
    first, last = nn.Sequential(model.embedding, model.blocks[0]), nn.Sequential(*model.blocks[1:], model.head)
    assert torch.equal(last(first(tokens)), model(tokens))
    names = {name for name, _ in model.blocks[0].named_modules()}
    assert names >= {"attention.qkv", "attention.out", "mlp.up", "mlp.down", "norm1", "norm2"}


def test_attention_split_by_heads_adds_up():
    """What tensor parallelism relies on: rows of qkv, and the same columns of out, make whole heads."""
    torch.manual_seed(0)
    whole, x = float64_gpt().blocks[0].attention, torch.randn(2, 5, 16, dtype=torch.float64)
    total = whole.out.bias.detach().clone()
    for half in range(2):
        part = float64_gpt().blocks[0].attention
        part.qkv.weight, part.qkv.bias = (nn.Parameter(p.chunk(2)[half]) for p in (whole.qkv.weight, whole.qkv.bias))
        part.out.weight, part.out.bias = nn.Parameter(whole.out.weight.chunk(2, 1)[half]), None
        total = total + part(x)
    assert torch.allclose(total, whole(x), atol=1e-12)


@pytest.mark.parametrize(
    "inputs, error, words",
    [
        (torch.zeros(2, 3, 8, 8), TypeError, "data='tokens'"),
        (torch.zeros(2, 4), TypeError, "gpt reads tokens"),
        (torch.zeros(2, 17, dtype=torch.long), ValueError, "make it with length=17"),
    ],
)
def test_what_is_no_text_is_refused(inputs, error, words):
    with pytest.raises(error, match=words):
        float64_gpt()(inputs)


def test_heads_share_the_width_evenly():
    with pytest.raises(ValueError, match="width 10 cannot be shared evenly by 4 heads"):
        gpt(width=10)


@pytest.mark.parametrize(
    "settings, words",
    [
        (dict(model="gpt"), "model 'gpt' reads tokens, and data 'digits'"),
        (dict(model="resnet8", data="tokens"), "choose model='gpt'"),
        (dict(model="gpt", data="tokens", compiler="xla"), "not supported with XLA"),
    ],
)
def test_a_model_and_data_that_do_not_fit_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        RunConfig(**settings)


# -- the text -----------------------------------------------------------------------------


def test_the_set_is_made_once_and_comes_out_the_same(tmp_path):
    said = []
    prepare.prepare("tokens", tmp_path, say=said.append)
    assert "8,192 train + 1,024 test sequences" in said[-1]
    train, test = sets.load("tokens", "train", tmp_path), sets.load("tokens", "test", tmp_path)
    assert (len(train), len(test), train.length, train.classes) == (8192, 1024, 64, grammar.WORDS)
    assert torch.equal(train.tokens[:50], torch.from_numpy(grammar.sequences(50, 64, 3)))
    inputs, following = train[7]
    assert inputs.dtype == torch.int64 and torch.equal(inputs[1:], following[:-1])
    assert all(a[-1] == b[0] for a, b in pairwise(train.tokens[:100].tolist())), "pieces of one text"
    assert not {tuple(row) for row in test.tokens.tolist()} & {tuple(row) for row in train.tokens.tolist()}


def test_verbs_agree_with_their_noun_across_the_clause():
    """The structure that is there to be learnt, read from the text by a rule of its own."""
    words, followed = grammar.sequences(400, 64, 3)[:, :-1].reshape(-1), 0
    text = [grammar.WORDS[number] for number in words]
    singular = {**dict.fromkeys(grammar.NOUNS, True), **dict.fromkeys(grammar.PLURALS, False)}
    open_nouns = []
    for word in text:
        if word in singular:
            open_nouns.append(singular[word])
        elif word in (*grammar.VERBS, *grammar.OF_MANY):
            followed += len(open_nouns) == 2
            assert (word in grammar.VERBS) == open_nouns.pop()
    assert followed > 300, "clauses between a noun and its verb"


def test_gpt_learns_it(tmp_path, monkeypatch):
    """The loss falls below that of guessing by how often each word occurs."""
    monkeypatch.setenv("HELPERS_RESULTS", str(tmp_path))
    train, test = toy_text(960)
    words = train[:][1].flatten().bincount(minlength=60) / train[:][1].numel()
    guessing = -(words * words.clamp_min(1e-9).log()).sum()
    record = helpers.run(
        RunConfig(
            model=lambda: gpt(layers=1, width=32, vocabulary=60, length=16),
            data=(train, test),
            optimizer="adamw",
            lr=1e-2,
            global_batch=32,
            steps=60,
            threads=1,
        )
    )
    measured = record["measured"]
    assert measured["evaluation"]["loss"] < guessing - 0.3
    assert (measured["evaluation"]["count"], measured["evaluation"]["answers"]) == (37, 37 * 16)
    row = read.row(record)
    assert measured["tokens_per_sample"] == 16 and row["tested"] == 37 * 16
    assert (row["samples_are"], row["tested_are"]) == ("sequences", "tokens")
    table, said = str(Comparison([record])), str(report.of(Comparison([record])))
    assert "sequences/s" in table and "sequences/s" in said and "images" not in table + said


@needs_fsdp
@pytest.mark.long
def test_the_command_line_trains_it_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("HELPERS_RESULTS", str(tmp_path))
    words = "--model gpt --data tokens --optimizer adamw --strategy fsdp --nproc_per_node 2 --global_batch 16 --steps 9"
    command = [sys.executable, "-m", "helpers", "train", *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert "FSDP ×2" in done.stdout and "sequences/s" in done.stdout and f"of {1024 * 64} tokens" in done.stdout


def test_its_loss_is_that_of_every_token():
    scores = torch.randn(2, 5, 7)
    tokens = torch.randint(7, (2, 5))
    each = -scores.log_softmax(-1).gather(-1, tokens[..., None])
    assert torch.allclose(next_token_loss(scores, tokens), each.mean())
    assert models.loss_of(float64_gpt()) is next_token_loss and models.loss_of(nn.Linear(1, 1)) is not next_token_loss
