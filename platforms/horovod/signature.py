"""Functions with Horovod's parameters in Horovod's order, written once as a text."""

import functools

from .core import Average, global_process_set

SCALES, SET = "prescale_factor=1.0, postscale_factor=1.0", "process_set=world"


def signed(text, **defaults):
    """A decorator: the function has the parameters of `text`, and is given all of them by name.

    `defaults`: what names in `text` stand for, besides `world` (the global process set) and `Average`.
    """
    given = ", ".join("{0}={0}".format(part.partition("=")[0].strip()) for part in text.split(","))

    def decorate(function):
        names = {"world": global_process_set, "Average": Average, "function": function, **defaults}
        made = functools.wraps(function)(eval(f"lambda {text}: function({given})", names))
        del made.__wrapped__  # its parameters are others
        return made

    return decorate
