"""The kit's own transformer, its text, and what is refused of either."""

from itertools import pairwise

import pytest
import torch
from toys import float64_gpt, toy_text

import helpers
from helpers import RunConfig, report
from helpers.comparison.comparison import Comparison
from helpers.data import grammar, prepare, sets
from helpers.records import read
from helpers.training.gpt import gpt


def test_a_token_depends_on_those_before_it_only():
    torch.manual_seed(0)
    model, tokens = float64_gpt(), toy_text()[0][:4][0]
    changed = tokens.clone()
    changed[:, 9:] = 0
    difference = (model(tokens) - model(changed)).abs().amax((0, 2))
    assert difference[:9].max() <= 1e-14 and difference[9:].min() > 1e-4


@pytest.mark.parametrize(
    "inputs, error",
    [
        (torch.zeros(2, 3, 8, 8), TypeError),
        (torch.zeros(2, 4), TypeError),
        (torch.zeros(2, 17, dtype=torch.long), ValueError),
    ],
)
def test_what_is_no_text_is_refused(inputs, error):
    with pytest.raises(error):
        float64_gpt()(inputs)
    with pytest.raises(ValueError, match="heads"):
        gpt(width=10)


# -- the text -----------------------------------------------------------------------------


def test_the_set_is_made_once_and_comes_out_the_same(tmp_path):
    prepare.prepare("tokens", tmp_path)
    train, test = sets.load("tokens", "train", tmp_path), sets.load("tokens", "test", tmp_path)
    assert (len(train), len(test), train.length, train.classes) == (8192, 1024, 64, grammar.WORDS)
    assert torch.equal(train.tokens[:50], torch.from_numpy(grammar.sequences(50, 64, 3)))
    inputs, following = train[7]
    assert inputs.dtype == torch.int64 and torch.equal(inputs[1:], following[:-1])
    assert all(a[-1] == b[0] for a, b in pairwise(train.tokens[:100].tolist())), "pieces of one text"
    assert not {tuple(row) for row in test.tokens.tolist()} & {tuple(row) for row in train.tokens.tolist()}


def test_gpt_learns_it(tmp_path, monkeypatch):
    """The loss falls below that of guessing by how often each word occurs."""
    monkeypatch.setenv("HELPERS_RESULTS", str(tmp_path))
    train, test = toy_text(960)
    words = train[:][1].flatten().bincount(minlength=60) / train[:][1].numel()
    guessing = -(words * words.clamp_min(1e-9).log()).sum()
    settings = dict(model=lambda: gpt(layers=1, width=32, vocabulary=60, length=16), optimizer="adamw", lr=1e-2)
    record = helpers.run(RunConfig(data=(train, test), global_batch=32, steps=60, threads=1, **settings))
    measured = record["measured"]
    assert measured["evaluation"]["loss"] < guessing - 0.3
    assert (measured["evaluation"]["count"], measured["evaluation"]["answers"]) == (37, 37 * 16)
    row = read.row(record)
    assert measured["tokens_per_sample"] == 16 and row["tested"] == 37 * 16
    assert (row["samples_are"], row["tested_are"]) == ("sequences", "tokens")
    table, said = str(Comparison([record])), str(report.Report(read.Found([{**record, "file": "a.json"}])))
    assert "sequences/s" in table and "sequences/s" in said and "images" not in table + said
