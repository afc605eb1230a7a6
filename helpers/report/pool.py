"""The records of a machine's ladders in one row, in which those with given settings are found without a look at all."""

from heapq import merge
from itertools import chain, groupby

from .pairs import BATCH, NO_MATTER, changes


class Pool:
    """The ladders of a machine, in an order; what they have measured is not touched before it is asked for."""

    def __init__(self, ladders):
        self.ladders, self._kinds = list(ladders), {}

    def ending_with(self, ladder) -> "Row":
        """Their records, those of `ladder` last."""
        return Row(self, ladder)

    def places(self, config, apart, fits, backwards=True):
        """Numbers of the ladders with a run that differs from `config` in `apart` at most, and that fits."""
        if apart not in self._kinds:
            self._kinds[apart] = self._sorted(apart)
        of_kind = self._kinds[apart].get(_key(config, apart), {})
        found = [places[::-1] if backwards else places for other, places in of_kind.values() if fits(other)]
        return (place for place, _ in groupby(merge(*found, reverse=backwards)))

    def _sorted(self, apart):
        kinds, keys = {}, {}
        for place, ladder in enumerate(self.ladders):
            for config in {id(run["config"]): run["config"] for run in ladder.runs}.values():
                if id(config) not in keys:
                    keys[id(config)] = kinds.setdefault(_key(config, apart), {})
                keys[id(config)].setdefault(id(config), (config, []))[1].append(place)
        return kinds


class Row:
    """All records of a pool; see `Pool.ending_with`."""

    def __init__(self, pool, last=None):
        self._pool, self._last = pool, last

    def partners(self, record, changed):
        """Records that could be `reading_pairs.partner`, the last first."""

        def fits(config):
            return all(config.get(key) == value for key, value in changed.items())

        return self._found(record, frozenset(changes(changed)), fits, backwards=True)

    def larger(self, record):
        """Records that do more in a step of a device and else compute alike, the first first."""
        least = record["config"]["local_batch"]
        return self._found(record, frozenset(BATCH), lambda config: config["local_batch"] > least, backwards=False)

    def _found(self, record, apart, fits, backwards):
        ladders, way = self._pool.ladders, -1 if backwards else 1
        places = self._pool.places(record["config"], apart, fits, backwards)
        last = [self._last] if self._last is not None else []
        others = (ladders[place] for place in places if ladders[place] is not self._last)
        for ladder in chain(last, others) if backwards else chain(others, last):
            yield from ladder.records[::way]


def _key(config, apart):
    return frozenset(
        (name, value if value.__hash__ else repr(value))
        for name, value in config.items()
        if value is not None and name not in NO_MATTER and name not in apart
    )
