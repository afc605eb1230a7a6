"""What ranks tell each other to set up the data plane: values under names, posted by one and read by all."""

import threading

from .errors import RankLost


class Notices:
    """`send` takes a message for the first rank, which passes it on to all."""

    def __init__(self, send):
        self._send = send
        self._values, self._news = {}, threading.Condition()
        self._closed = None

    def post(self, name, value):
        """Tell all ranks that `name` is `value` (bytes)."""
        self._send({"post": [name, value.hex()]})

    def take(self, name, value):
        """A rank has posted this."""
        with self._news:
            self._values[name] = bytes.fromhex(value)
            self._news.notify_all()

    def close(self, why):
        """Nothing more will come."""
        with self._news:
            self._closed = why
            self._news.notify_all()

    def read(self, name, timeout=None):
        """What was posted under `name`; waits for it.

        Raises:
            RankLost: a rank is gone. TimeoutError: nothing came in time.
        """
        with self._news:
            if not self._news.wait_for(lambda: name in self._values or self._closed, timeout):
                raise TimeoutError(f"no rank has posted {name}")
            if name not in self._values:
                raise RankLost(self._closed)
            return self._values[name]
