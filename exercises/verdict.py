"""What all checks share: the form of a verdict, and how the reader's answer is tried and compared.

In the checks, `_wrong_…` and `_hint_…` say what is wrong with what was found, or None.
"""

import functools

import torch

from helpers.launcher.language import local


def exercise(praise):
    """Decorator that makes a check of a generator of hints: texts, or pairs of a case and a text; or None.

    The first hint ends the check as "Not yet."; it says where to look, not what to write. Without any the answer is
    right, and `praise` says what follows from it. The check returns whether it is right.
    """

    def decorate(hints):
        @functools.wraps(hints)
        def check(answer) -> bool:
            for found in hints(answer):
                case, hint = found if isinstance(found, tuple) else (None, found)
                if hint:
                    return not_yet(local("{text}: {more}", text=case, more=_sentence(local(hint))) if case else hint)
            return right(praise)

        return check

    return decorate


def _sentence(text):
    return text if text[-1] in ".?。？" else local("{text}.", text=text)


def right(text) -> bool:
    """The answer is right."""
    print(local("Right. {text}", text=local(text)))
    return True


def not_yet(hint) -> bool:
    """The answer is not right yet."""
    print(local("Not yet. {hint}", hint=local(hint)))
    return False


def attempt(function, *arguments):
    """(value, None) of the reader's function, or (None, what went wrong) when it raises."""
    try:
        return function(*arguments), None
    except Exception as error:  # the reader's code may raise anything
        return None, local("your function raised {kind}: {error}", kind=type(error).__name__, error=error)


def number(function, *arguments):
    """As `attempt`, of a function that returns a number."""
    value, problem = attempt(function, *arguments)
    if problem:
        return None, problem
    try:
        return float(value), None
    except (TypeError, ValueError, RuntimeError):
        return None, local("your function returned {value!r}, not a number. Is there a `return`?", value=value)


def number_or_none(function, *arguments):
    """As `number`, of a function that may also return None."""
    value, problem = attempt(function, *arguments)
    return (value, problem) if value is None else number(lambda: value)


def equal(some, others) -> bool:
    """Whether two lists of tensors are equal but for rounding in float64."""
    return all(torch.allclose(a.double(), b, rtol=0, atol=1e-10) for a, b in zip(some, others, strict=True))


def flat(tensors):
    """All numbers of some tensors in one."""
    return torch.cat([t.detach().flatten() for t in tensors])
