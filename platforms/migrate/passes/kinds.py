"""The two kinds of passes: those for any script, and those for a script in the shape of the ImageNet example."""

import functools

from ..tree import Unclear


def anywhere(step):
    """A pass for any script: a function of the Script, whose edits count for `step` unless they say another one."""

    def wrap(function):
        @functools.wraps(function)
        def run(script):
            script.step = step
            try:
                function(script)
            except Unclear as unclear:
                script.left(unclear.node, unclear.text, unclear.advice)
                script.forget()

        return run

    return wrap


def shaped(step):
    """A pass for a script whose whole shape was recognised: a function of the Script and its Shape."""

    def wrap(function):
        @anywhere(step)
        @functools.wraps(function)
        def run(script):
            if script.shape.full:
                function(script, script.shape)

        return run

    return wrap
