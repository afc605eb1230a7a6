"""One rank's side: the collectives it has submitted, and the thread that runs those the coordinator has decided on.

A caller's thread submits an Entry and may go on computing. Requests are collected for a moment
(HOROVOD_CYCLE_TIME) and sent to the coordinator. It answers with a list of collectives, in the same
order on every rank, which one thread runs on the data plane.
"""

import collections
import os
import sys
import threading
import time

from . import cache
from .errors import CollectiveError, RankLost
from .requests import listed
from .wire import TooLong

FLUSH = 2**24  # bytes of submitted tensors after which requests are sent at once
RESTLESS = 1.0  # seconds without a request after which the working thread sleeps until it is woken
GRACE = 0.3  # seconds that running collectives get to end by themselves once a rank is lost
STANDING = 0.5  # seconds of waiting after which a rank reports to rank 0 that it is blocked
PATIENCE = 30.0  # seconds that a rank which leaves waits to hear from the others, in case one of them hangs


class Notices:
    """Values under names that the ranks exchange to set up the data plane; one rank posts a value, all can read it.

    `send` takes a message for rank 0, which forwards it to all ranks.
    """

    def __init__(self, send):
        self._send = send
        self._values, self._news = {}, threading.Condition()
        self._closed = None

    def post(self, name, value):
        """Publish `value` (bytes) under `name`."""
        self._send({"post": [name, value.hex()]})

    def take(self, name, value):
        """Store a value that a rank has posted."""
        with self._news:
            self._values[name] = bytes.fromhex(value)
            self._news.notify_all()

    def close(self, why):
        """No more values will come; `why` is the error of those who wait."""
        with self._news:
            self._closed = why
            self._news.notify_all()

    def read(self, name, timeout=None):
        """Wait for the value posted under `name` and return it.

        Raises:
            RankLost: a rank is gone. TimeoutError: nothing came in time.
        """
        with self._news:
            if not self._news.wait_for(lambda: name in self._values or self._closed, timeout):
                raise TimeoutError(f"no rank has posted {name}")
            if name not in self._values:
                raise RankLost(self._closed)
            return self._values[name]


class Engine:
    """See the module. `send` takes a message for the coordinator; `plane` runs the collectives."""

    def __init__(self, rank, size, send, timeline):
        self.rank, self.size, self.send, self.timeline = rank, size, send, timeline
        self.plane = None
        self.lost = None  # (text, ranks) once a rank is lost
        self.gone = set()  # ranks that have shut down for good
        self.first_returns = False  # whether rank 0 has left in order to start again with the others
        self.forked = False  # whether this process was forked from the rank
        self._resting = False  # whether the working thread sleeps until it is woken
        self._entries = {}  # (set, name) -> Entry
        self._queue, self._bytes, self._due = [], 0, 0.0  # requests not yet sent, and when they have to be sent
        self._hits = {}  # set -> bits of the requests not yet sent that have numbers, see `cache`
        self._numbers = {}  # (set, name) -> (bit, request), of the latest number
        self._names = {}  # (set, number) -> (set, name)
        self._spelled = {}  # (set, bits as text) -> [(set, name), …] of a decision
        self.given = {}  # what the framework has checked and described before: see torch/handles.py
        self._responses = collections.deque()
        self._lock = threading.RLock()
        self._wake = threading.Condition(self._lock)
        self._sending = threading.RLock()
        self._running = ()
        self._leaving = self._stop = False
        self._free = threading.Event()  # set when no other rank needs this one any more
        self.notices = Notices(send)
        self.cycle = float(os.environ.get("HOROVOD_CYCLE_TIME", 20)) / 1000
        self.on_joined = lambda: None
        self.patience = PATIENCE  # seconds to wait for the others when this rank leaves
        self.silent = list  # a function that returns the ranks without a sign of life, as far as this one can see
        self._carried = 0  # number of decisions carried out
        self._thread = threading.Thread(target=self._work, daemon=True, name="hvd")

    def start(self, plane):
        """Start to run collectives on `plane`."""
        self.plane = plane
        self._thread.start()

    def submit(self, entry):
        """Submit a collective; returns its entry.

        Raises:
            CollectiveError: its name is in use. RankLost: a rank is lost, or has shut down.
        """
        if self.forked:
            raise RankLost("this process was forked from a rank and is none itself; it has no connection to the others")
        key, request = entry.key, entry.request
        with self._lock:
            if self.lost or self._leaving:
                self._check()
            if key in self._entries:
                raise CollectiveError(
                    f"{request['kind']} '{key[1]}': this name is in use by an earlier request of rank "
                    f"{self.rank} that has not ended; synchronize that first, or use another name"
                )
            self._entries[key] = entry
            if not self._queue and not self._hits:
                self._due = time.monotonic() + self.cycle / 2
                if self._resting:  # otherwise it looks again within a cycle, and waking it costs more than the request
                    self._wake.notify()
            bit, known = self._numbers.get(key, (0, None))
            if known is request or known == request:
                self._hits[key[0]] = self._hits.get(key[0], 0) | bit
            else:
                self._queue.append(request)
            self._bytes += request.get("bytes", 0)
            full = self._bytes >= FLUSH
        if full:
            self.flush()
        return entry

    def refuse(self, request):
        """Tell the other ranks that this rank's own request is invalid, so that they do not wait for it."""
        with self._wake:
            self._check()
            if (request["set"], request["name"]) in self._entries:
                return  # the name is in use; the earlier request under it remains valid
            self._queue.append(request)
        self.flush()

    def wait(self, entry):
        """Wait for an entry; return its result or raise its error."""
        if not entry.ended:
            self.flush()
            with self._lock:
                bell = entry.bell = entry.bell or threading.Event()
            if not entry.ended and not bell.wait(STANDING):  # one that has ended before rings no bell
                self._say({"blocked": [entry.key]})
                bell.wait()
        return entry.value()

    def _say(self, message):
        """Send; returns whether that worked. If not, the thread that reads the same connection ends the job."""
        try:
            self.send(message)
        except OSError:
            return False
        return True

    def flush(self):
        """Send the collected requests."""
        with self._sending:
            with self._lock:
                asked, self._queue, self._bytes = self._queue, [], 0
                hits, self._hits = self._hits, {}
            if asked or hits:
                self.timeline.cycle()
                self._ask(asked, [[number, f"{bits:x}"] for number, bits in hits.items()])

    def _ask(self, asked, hits=()):
        try:
            self.send({"ask": asked, "hits": hits} if hits else {"ask": asked})
        except TooLong as error:
            if hits:
                self._ask([], hits)
                self._ask(asked)
            elif len(asked) > 1:
                self._ask(asked[: len(asked) // 2])
                self._ask(asked[len(asked) // 2 :])
            else:
                key = asked[0]["set"], asked[0]["name"]
                self._end(self._take(*key), error=CollectiveError(f"{asked[0]['kind']} '{key[1][:200]}': {error}"))
        except OSError:
            pass  # the thread that reads this connection ends the job

    def _keys(self, message):
        """The (set, name) of each collective that a decision starts."""
        if "hits" in message:
            decision = message["set"], message["hits"]
            if decision not in self._spelled:
                if len(self._spelled) >= cache.PLANS:
                    self._spelled.clear()
                found = cache.numbers(int(decision[1], 16))
                self._spelled[decision] = [self._names[decision[0], number] for number in found]
            return self._spelled[decision]
        if "run" in message:
            return [(message["set"], name) for name in message["run"]]
        return [(0, message["name"])] if "number" in message else []

    def _number(self, message, entries):
        """Note the numbers that requests have got, before their collective ends and the names come again."""
        for number, entry in zip(message["numbers"], entries):
            if number is not None and entry is not None:
                self._numbers[entry.key] = 1 << number, entry.request
                self._names[message["set"], number] = entry.key

    def _check(self):
        if self.lost:
            raise RankLost(self.lost[0])
        if self._leaving:
            raise RankLost("Horovod has been shut down; call hvd.init() again")

    def receive(self, messages):
        """Handle messages from the coordinator, in order."""
        for message in messages:
            self._receive(message)

    def _receive(self, message):
        if "post" in message:
            self.notices.take(*message["post"])
        elif "lost" in message:
            self.abort(message["why"], message["lost"])
        elif "free" in message:
            self._free.set()
        else:
            if "leaves" in message and not message["again"]:
                self.gone.add(message["leaves"])
            elif "leaves" in message and message["leaves"] == 0:
                self.first_returns = True
            with self._wake:
                self._responses.append(message)
                self._wake.notify()

    def abort(self, why, ranks):
        """A rank is lost: fail all collectives that have not ended."""
        with self._wake:
            if self.lost or self._stop:
                return
            self.lost = (why, list(ranks))
            self._queue, self._bytes, self._hits = [], 0, {}
            decided = {key for message in self._responses for key in self._keys(message)} | set(self._running)
            failed = [self._entries.pop(key) for key in list(self._entries) if key not in decided]
            late = [self._entries[key] for key in decided if key in self._entries]
        self._free.set()
        for entry in failed:
            self._end(entry, error=RankLost(why))
        self.notices.close(why)
        if late:  # decided before the loss, so their data may have arrived
            timer = threading.Timer(GRACE, self._give_up, [late, why])
            timer.daemon = True
            timer.start()

    def _give_up(self, entries, why):
        for entry in entries:
            if not entry.ended:
                self._end(entry, error=RankLost(why))

    # The working thread

    def _work(self):
        while True:
            with self._wake:
                if not self._responses:
                    if self._stop:
                        return
                    self._resting = not self._queue and not self._hits and time.monotonic() > self._due + RESTLESS
                    self._wake.wait(None if self._resting else self.cycle)
                message = self._responses.popleft() if self._responses else None
                self._running = self._keys(message) if message else ()
                entries = [self._entries.get(key) for key in self._running]
                due = (self._queue or self._hits) and time.monotonic() >= self._due
            if self.lost:
                continue  # the decided collectives have failed, or will within GRACE
            try:
                if due:
                    self.flush()
                if message:
                    self._carry_out(message, entries)
                    self._carried += 1
            except Exception as error:
                self._failed(error)

    def _carry_out(self, message, entries):
        try:
            if "run" in message or "hits" in message:
                self._run(message, entries)
            elif "error" in message:
                kind = RankLost if message["left"] else CollectiveError
                self._end(self._take(message["set"], message["name"]), error=kind(message["error"]))
            elif "joined" in message:
                self.on_joined()
                self._end(self._take(0, "join"), result=message["joined"])
            elif "leaves" in message:  # this rank has run everything that was decided together with the leaving rank
                self._say({"past": message["leaves"]})
            else:
                self._change_sets(message)
        except Exception as error:
            self._failed(error, entries)

    def _run(self, message, entries):
        if "numbers" in message:
            self._number(message, entries)
        began = time.monotonic()
        results = self.plane.run(message, entries)
        if self.timeline.writes():
            for entry in filter(None, entries):
                self.timeline.ran(entry, began)
        bells = []
        with self._lock:  # once for all of them
            for entry, result in zip(entries, results):
                if entry is not None:
                    entry.inputs = ()
                    self._entries.pop(entry.key, None)
                    bells.append(entry.end(result))
        for bell in filter(None, bells):  # after the lock is released, because the waiting thread takes it next
            bell.set()

    def _change_sets(self, message):
        if "add_set" in message and message["fresh"]:
            self.plane.add_set(message["number"], message["add_set"])
        elif "drop_set" in message and message["fresh"]:
            self.plane.drop_set(message["number"])
        self._end(self._take(0, message["name"]), result=(message["number"], message["fresh"]))

    def _failed(self, error, entries=()):
        """The data plane raised an error, most likely because a rank has just died and a connection broke."""
        self._await_blame()
        if not self.lost:
            why = f"a collective failed on rank {self.rank}: {type(error).__name__}: {error}"
            if self.gone:
                why = f"{listed(sorted(self.gone))} left while a collective was under way ({error})"
            self._say({"failed": why})
            silent = self.silent()
            if silent:
                why += f" ({listed(silent)} showed no sign of life)"
            else:
                self._await_blame()  # rank 0 answers, and may know which rank is silent
            self.abort(why, self.gone or silent)
        self._give_up([entry for entry in entries if entry is not None], self.lost[0] if self.lost else str(error))

    def _await_blame(self):
        """The control connections report within moments which rank was lost."""
        for _ in range(20):  # not by the clock: on a busy machine this waits longer, as the other threads do
            if self.lost or self._stop:
                break
            time.sleep(GRACE / 20)

    def _take(self, number, name):
        with self._wake:
            return self._entries.pop((number, name), None)

    def _end(self, entry, result=None, error=None):
        if entry is None:  # this rank had refused the request itself
            return
        with self._lock:
            if self._entries.get(entry.key) is entry:
                del self._entries[entry.key]
            if entry.key not in self._running:  # tensors of a running collective are still being sent
                entry.inputs = ()
            bell = entry.end(result, error)
        if bell is not None:
            bell.set()  # after the lock is released, because the waiting thread takes it next

    def leave(self, again):
        """Announce that this rank leaves, and wait until no rank needs it for a collective decided before.

        Args:
            again: whether this rank leaves in order to start again with the others.
        """
        with self._wake:
            self._leaving = True
        self.flush()
        if self._say({"bye": "again" if again else "for good"}) and threading.current_thread() is not self._thread:
            self._free.wait(self.patience)

    def stop(self):
        """End the working thread and fail all collectives that have not ended."""
        with self._wake:
            self._leaving = self._stop = True
            self._responses.clear()
            failed, self._entries = list(self._entries.values()), {}
            self._wake.notify()
        for entry in failed:
            self._end(entry, error=RankLost("Horovod has been shut down"))
        carried = None
        while self._thread.is_alive() and carried != self._carried and threading.current_thread() is not self._thread:
            carried = self._carried
            self._thread.join(timeout=1)  # a busy machine may need longer: wait as long as there is progress
        if self._thread.is_alive():
            print("hvd: a collective is still waiting for another rank; leaving it behind", file=sys.stderr)
