"""display() and plt.show() on a rank: what they show goes to the notebook, below the number of the rank."""

import importlib.util
import os
import sys

MODULE = "IPython.core.display_functions"  # where display() lives


def install(channel):
    """Have display() send through `channel` once a function of the reader has imported it."""
    sys.meta_path.insert(0, _Finder(channel))


class _Finder:
    """Puts another function into MODULE when that is imported."""

    def __init__(self, channel):
        self.channel = channel

    def find_spec(self, name, path=None, target=None):
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            module.display = _display(self.channel, module)

        spec.loader.exec_module = exec_module
        return spec


def _display(channel, module):
    from IPython.core.formatters import DisplayFormatter

    formatter = DisplayFormatter()
    formatter.formatters["image/png"].for_type_by_name("matplotlib.figure", "Figure", _png)

    def display(*objects, raw=False, metadata=None, display_id=None, update=False, include=None, exclude=None, **_):
        sys.stdout.flush()
        identity = os.urandom(8).hex() if display_id is True else display_id
        for one in objects:
            data, about = (one, {}) if raw else formatter.format(one, include, exclude)
            channel.send("display", data, {**about, **(metadata or {})}, identity, update)
        return identity and module.DisplayHandle(identity)

    return display


def _png(figure):
    from IPython.core.pylabtools import print_figure

    return print_figure(figure, base64=True)
