"""Sentences for the set `tokens`: made up, by a grammar that a model can learn from them.

    the small foxes that one bird sees hide some old tools here .

The verb agrees in number with its noun across the clause between them, a noun is followed by few of the verbs, and
the word at the end depends on the verb: the next word is easiest to guess for a model that looks far back.
"""

from itertools import chain, count

import numpy as np

NOUNS = ("fox", "bird", "farmer", "child", "king", "river", "ship", "tree")
PLURALS = ("foxes", "birds", "farmers", "children", "kings", "rivers", "ships", "trees")
VERBS = ("sees", "finds", "follows", "hides", "moves", "holds", "turns", "leaves")
OF_MANY = ("see", "find", "follow", "hide", "move", "hold", "turn", "leave")
THINGS = ("tool", "stone", "lamp", "boat", "book", "apple")
MANY_THINGS = ("tools", "stones", "lamps", "boats", "books", "apples")
ADJECTIVES = ("small", "old", "red", "quiet", "young", "heavy")
ENDINGS = ("here", "slowly", "today", "again")
OTHERS = (".", "the", "one", "some", "that", "and")
WORDS = OTHERS + NOUNS + PLURALS + VERBS + OF_MANY + THINGS + MANY_THINGS + ADJECTIVES + ENDINGS

INDEX = {word: i for i, word in enumerate(WORDS)}


def sequences(number, length, seed) -> np.ndarray:
    """`number` pieces of one long text as uint8 [number, length + 1]; each begins with the last word of the one before.

    The input of a model is all but the last token of a piece, its targets are all but the first.
    """
    draw, text = _draws(seed), []
    while len(text) <= number * length:
        _sentence(text, draw)
    numbers = np.array([INDEX[word] for word in text[: number * length + 1]], np.uint8)
    return np.lib.stride_tricks.sliding_window_view(numbers, length + 1)[::length].copy()


def _draws(seed):
    """A function that draws from 0 … n - 1, smaller numbers more often: the smaller of two equally likely ones."""
    rng = np.random.RandomState(seed)  # its stream is frozen, so the same text comes out on every machine
    source = chain.from_iterable(rng.randint(0, 2**30, 100_000).tolist() for _ in count())
    return lambda n: min(next(source) % n, next(source) % n)


def _sentence(text, draw):
    """Append the words of a sentence."""
    while True:
        noun, many = draw(len(NOUNS)), draw(2)
        _noun_phrase(text, draw, (NOUNS, PLURALS)[many][noun], many)
        if not draw(3):
            of_clause, several = draw(len(NOUNS)), draw(2)
            text.append("that")
            _noun_phrase(text, draw, (NOUNS, PLURALS)[several][of_clause], several)
            text.append((VERBS, OF_MANY)[several][_verb(of_clause, draw)])
        verb, things = _verb(noun, draw), draw(2)
        text.append((VERBS, OF_MANY)[many][verb])
        _noun_phrase(text, draw, (THINGS, MANY_THINGS)[things][draw(len(THINGS))], things)
        if draw(2):
            text.append(ENDINGS[verb % len(ENDINGS)])
        if draw(4) < 2:
            text.append(".")
            return
        text.append("and")


def _noun_phrase(text, draw, noun, many):
    article = ("the", ("one", "some")[many])[draw(2)]
    text += [article, ADJECTIVES[draw(len(ADJECTIVES))], noun] if draw(2) else [article, noun]


def _verb(noun, draw):
    """One of the three verbs that go with a noun."""
    return (noun + draw(3)) % len(VERBS)
