"""Work shared by copies of this process: each has all its data, and only what it found is sent back."""

import os
import signal
import sys
import threading
import warnings
from array import array


def may_fork() -> bool:
    """Whether a copy of this process is sure to run: not where threads might hold a lock, and torch starts some."""
    if sys.platform != "linux" or threading.active_count() > 1 or "torch" in sys.modules:
        return False
    import multiprocessing

    return not multiprocessing.current_process().daemon  # which must not have children


class Forks:
    """Processes that begin at once, each with the next of the jobs that nobody has begun.

    A context; when it ends, no process is left.
    """

    def __init__(self, work, jobs, workers):
        self._readers = {}
        try:
            self._start(work, list(jobs), workers)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def found(self):
        """(number of a job, what `work` made of it), as they get done; those of a process that died are left out."""
        from multiprocessing import connection

        coming = list(self._readers)
        while coming:
            for receiver in connection.wait(coming):
                try:
                    found = receiver.recv()
                except (EOFError, OSError):  # it has done all, or died
                    coming.remove(receiver)
                    continue
                yield found

    def close(self):
        """End the processes, whatever they are at: they leave nothing to put in order."""
        for receiver, process in self._readers.items():
            receiver.close()
            process.kill()
            process.join()
        self._readers = {}

    def _start(self, work, jobs, workers):
        """Start the processes, as many as the system lets; Ctrl-C is for this one alone, which ends the others."""
        import multiprocessing

        fork = multiprocessing.get_context("fork")
        try:
            turns = _turns(len(jobs))
        except OSError:  # the system has no such files: this process does it all
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for _ in range(min(workers, len(jobs))):
                receiver, sender = fork.Pipe(duplex=False)
                process = fork.Process(target=_serve, args=(work, jobs, turns, sender, receiver), daemon=True)
                with warnings.catch_warnings():  # NumPy's threads, which Python counts since 3.12, know of forks
                    warnings.simplefilter("ignore", DeprecationWarning)
                    process.start()
                sender.close()
                self._readers[receiver] = process
        except OSError:  # no more processes: this one does the rest
            pass
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(turns)


NUMBER = array("I").itemsize  # bytes of a job's number


def _turns(count):
    """A file of numbers, of which each process reads the next, since copies of a process share the place in a file."""
    turns = os.memfd_create("turns")
    with open(turns, "wb", closefd=False) as file:
        file.write(array("I", range(count)).tobytes())
    os.lseek(turns, 0, os.SEEK_SET)
    return turns


def _serve(work, jobs, turns, sender, receiver):
    """What a process does."""
    receiver.close()
    try:
        while number := os.read(turns, NUMBER):
            (place,) = array("I", number)
            sender.send((place, work(jobs[place])))
    except Exception:  # nobody listens any more, or the other process does this one itself and says what is wrong
        pass
