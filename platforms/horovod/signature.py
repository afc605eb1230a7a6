"""Functions with Horovod's parameters in Horovod's order, where ours hand most of them on."""

import functools
import inspect


def parameters(order, *sources):
    """A decorator: the function is called as one with the parameters named in `order`, and is given all by name.

    Their defaults are its own, or else those of the `sources`, functions to which it hands its options on.
    """

    def decorate(function):
        known = {}
        for each in (*sources, function):
            known.update(inspect.signature(each).parameters)
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        signature = inspect.Signature([known[name].replace(kind=kind) for name in order.split()])

        @functools.wraps(function)
        def called(*args, **kwargs):
            return function(**signature.bind(*args, **kwargs).arguments)

        called.__signature__ = signature
        return called

    return decorate
