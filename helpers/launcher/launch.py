"""Run a function on N ranks, from a notebook cell or a script.

    def hello(greeting):
        with helpers.distributed() as world:
            return f"{greeting} from rank {world.rank} of {world.size}"

    launch(hello, 2, "good morning")

Each rank is a fresh process forked from a server that imported torch once (see
`helpers.launcher`), so a launch takes about a tenth of a second, whatever the notebook has
done before, and nothing is left running afterwards.
"""

import inspect
import math
import os
import pickle
from contextlib import closing
from functools import partial
from numbers import Integral

from .. import device, releases
from ..language import Message
from . import client, context, interpreter, logs, payload, shared_message, surroundings
from .engine import ForkServerEngine
from .errors import RankError, RankTimeout  # noqa: F401  what it raises
from .progress import launching
from .shared_message import SharedMessage
from .supervisor import Supervisor

# Bytes that the fork server and each rank take before they hold anything of the caller's (python -m benchmarks growth).
SERVER_MEMORY, RANK_MEMORY = 450e6, 15e6


def launch(
    fn,
    nprocs,
    *args,
    timeout=None,
    threads=None,
    memory=None,
    env=None,
    on_event=None,
    python=None,
    background=False,
    on=None,
    **kwargs,
):
    """Call `fn(*args, **kwargs)` on `nprocs` ranks; return the list of their return values.

    In each rank RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set
    as torchrun sets them, so `fn` can call `torch.distributed.init_process_group` or use
    `helpers.distributed()`. What ranks print appears here, labelled, while they run.

    Args:
        fn: the function; it may be defined in a cell and use variables of the notebook.
        nprocs: number of ranks, at most one a device on a machine with accelerators.
        timeout: seconds after which the run is stopped (None: wait as long as it takes).
        threads: CPU threads of each rank (None: the cores divided by the ranks).
        memory: what each rank may hold besides its interpreter, such as "600 MB" (None: no limit). On CUDA that is
            memory of the device; on a CPU it needs Linux, and steps take longer.
        env: environment variables to set in the ranks, a dict of strings.
        on_event: called with each dict that a rank sends by `helpers.emit`.
        python: path of an interpreter of the same minor version, whose environment (its torch, its
            packages) the ranks use; None for this one. The first launch in it takes some seconds more.
        background: return at once with a handle of the run (`status`, `stop()`, `result()`, `logs(rank)`), so
            that other cells can run meanwhile. Runs of one notebook take turns: one at a time.
        on: what starts the ranks on other machines, "slurm"; its options, such as nodes=2, stand beside it
            (`helpers.cluster`). None for this machine.

    Raises:
        TypeError, ValueError: bad arguments; no rank was started.
        UnfitTorch: the torch or torchvision of this environment will not do; no rank was started.
        RankError: a rank failed; it names the rank that failed first and shows its traceback.
        RankTimeout: `timeout` has passed; it shows where each rank stood.
        RankOutOfMemory: a rank (a RankError, too) asked for more than `memory`.
        KeyboardInterrupt: the stop button; prints where each rank stood, leaves nothing running.
    """
    if on is not None:
        from .engines import taken

        on, kwargs = taken(on, fn, kwargs)
    check_function(fn, args, kwargs)
    options = Options(nprocs, timeout, threads, env, on_event, python, memory, on)
    data = options.packed(fn, args, kwargs)
    name, n = _shown_name(fn, args), options.nprocs
    label = (
        Message("{name} on {nprocs} ranks", name=name, nprocs=n) if n > 1 else Message("{name} on 1 rank", name=name)
    )
    if background:
        from .background import start

        return start(label, partial(_in_turn, options, data, label))
    return _in_turn(options, data, label)


def _in_turn(options, data, label, progress=None):
    """Run when it is its turn; `progress` shows how it goes, if there is one."""
    with context.interrupts_held_back(), launching(label, progress):
        answers = _run(options, data)
    return [shared_message.opened(answer) for answer in answers]


def _run(options, message):
    with closing(message):
        with Supervisor(options.engine(), options.nprocs, message, options.on_event) as run:
            return run.run(options.timeout)


def prepare_launcher(python=None):
    """Wait until launches (in the environment of `python`) are as quick as they get; start the server if need be.

    Called before timed runs, so that the first of them does not share the cores with the
    imports of the server. LauncherError, if the server cannot start.
    """
    client.server(interpreter.checked(python)).prepare()


def _shown_name(fn, args):
    """The name of the caller's function, which the kit's wrappers are given, followed by the tuple of its arguments."""
    if getattr(fn, "__module__", "").startswith("helpers."):
        for inner, of_inner in zip(args, args[1:], strict=False):
            if callable(inner) and isinstance(of_inner, tuple):
                return _shown_name(inner, of_inner)
    return getattr(fn, "__name__", "a function")


class Options:
    """What a launch, or persistent ranks, were asked to run with; checked, before any process starts."""

    def __init__(self, nprocs, timeout=None, threads=None, env=None, on_event=None, python=None, memory=None, on=None):
        for name, value in (env or {}).items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise TypeError(f"env[{name!r}] is {value!r}; environment variables are text, write {str(value)!r}")
        self.environment = {**os.environ, **(env or {})}
        _check_ranks(nprocs, self.environment, here=on is None)
        self.nprocs = int(nprocs)  # NumPy's integers are welcome, but do not travel as JSON
        if threads is None and on is None:  # another machine counts its own cores
            threads = max(1, device.usable_cores() // self.nprocs)
        if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
            raise ValueError(f"threads is {threads!r}; give a whole number of threads a rank, 1 or more")
        check_timeout(timeout)
        if on_event is not None and not callable(on_event):
            raise TypeError(f"on_event is {on_event!r}; give a function that takes one event (a dict)")
        self.timeout, self.threads, self.on_event = timeout, threads, on_event
        self.memory = None
        if memory is not None:
            from . import limit

            self.memory = limit.checked(memory, self.environment)
        self.python = interpreter.checked(python)
        if self.python is None:
            releases.check()
        self.on = on and on()
        if on:
            if self.python is not None:
                raise TypeError("python= is an interpreter of this machine: leave it out, or leave out on=")
            self.environment = env or {}
            self.on.check(self.nprocs)

    def engine(self):
        """What starts the ranks."""
        if self.on:
            return self.on
        server = client.server(self.python, self.environment)
        if self.memory:
            server.prepare()  # else what a rank imports itself would count
        return ForkServerEngine(server)

    def packed(self, fn, args, kwargs):
        """The SharedMessage that is the payload of ranks which call `fn(*args, **kwargs)`."""
        around = {
            "environment": self.environment,
            "argv": surroundings.arguments(),
            "path": interpreter.import_path(self.python),
            "folder": os.getcwd(),
            "sources": payload.cell_sources(),
            "logging": logs.configured(),
            "threads": self.threads,
            "memory": self.memory,
        }
        return payload.packed_call(fn, args, kwargs, partial(SharedMessage, before=pickle.dumps(around)))


def check_function(fn, args, kwargs, caller="launch"):
    """Raises TypeError unless `fn` can be called with these arguments, which were given to `caller`."""
    if not callable(fn):
        raise TypeError(f"{caller} needs a function to run on the ranks, got {type(fn).__name__}: {fn!r:.80}")
    for called in (fn, type(fn).__call__):
        if inspect.iscoroutinefunction(called):
            raise TypeError(
                f"{getattr(fn, '__name__', fn)} is an async function, and nobody awaits it on a rank: give {caller} a "
                "function that calls asyncio.run, such as lambda: asyncio.run(main())"
            )
        if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
            raise TypeError(
                f"{getattr(fn, '__name__', fn)} yields, and a generator cannot be sent back from a rank: give {caller} "
                "a function that returns a list"
            )
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some built-in functions have none
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = getattr(fn, "__name__", fn)
        raise TypeError(f"{name}{signature} cannot be called with the arguments given to {caller}: {error}") from None


def check_timeout(timeout):
    """Raises ValueError unless `timeout` is None or a positive number."""
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < math.inf:
        raise ValueError(f"timeout is {timeout!r}; give a positive number of seconds, or None to wait")


def _check_ranks(nprocs, environment, here):
    if isinstance(nprocs, bool) or not isinstance(nprocs, Integral):
        raise TypeError(f"nprocs is {nprocs!r}; give a whole number of ranks, 1 or more")
    if nprocs < 1:
        raise ValueError(f"nprocs is {nprocs}; a run needs at least 1 rank")
    if not here:
        return
    count = device.accelerator_count(environment)
    if count and nprocs > count:
        raise ValueError(
            f"{nprocs} ranks asked for, but this machine has {count} accelerator(s), and two ranks cannot "
            f"share one. Use at most {count}, or run on the CPU with env={{'HELPERS_DEVICE': 'cpu'}}"
        )
    cores, memory = device.usable_cores(), device.usable_memory()
    most = min(max(64, 8 * cores), int((memory - SERVER_MEMORY) // RANK_MEMORY))
    if nprocs > most:
        raise ValueError(f"{nprocs} ranks are too many for {cores} cores and {memory / 1e9:.1f} GB: at most {most}")
