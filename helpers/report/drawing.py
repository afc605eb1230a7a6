"""The figures of a page, drawn by other processes while this one finds the words that stand beside them.

Loading matplotlib and drawing take longer than all else that a report does; this process then needs neither.
"""

from .. import device
from ..records import forks
from .html import figure


class Drawing:
    """Figures that are drawn from the beginning on; a context.

    `makers` are functions that give a list of (figure, alt). Where no processes may be started, or only one figure is
    to be drawn, that is done when it is asked for.
    """

    def __init__(self, makers):
        self._makers, self._known, self._forks, self._coming = list(makers), {}, None, iter(())
        workers = min(device.usable_cores(), len(self._makers))
        if workers > 1 and forks.may_fork():
            self._forks = forks.Forks(_drawn, self._makers, workers)
            self._coming = self._forks.found()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self._forks:
            self._forks.close()

    def of(self, maker) -> list:
        """The figures of one of the makers as parts of the page."""
        place = next(place for place, one in enumerate(self._makers) if one is maker)
        while place not in self._known:
            found = next(self._coming, None)
            number, drawn = found or (place, html(maker))  # a process may have died
            self._known[number] = drawn
        return self._known[place]


def _drawn(maker):
    """`html` in a process that does nothing else.

    A third of the time to load matplotlib goes into putting its documentation together, which nobody reads here.
    """
    from matplotlib import artist

    artist.kwdoc = lambda _: ""
    return html(maker)


def html(maker) -> list:
    """The figures that a function makes, as parts of a page."""
    return [figure(*one, kind="png") for one in maker()]
