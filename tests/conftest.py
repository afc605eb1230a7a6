"""What every test may count on; torch is imported later, since the process that starts the workers needs none."""

import os
import signal

import pytest

os.environ.setdefault("HELPERS_ALONE", "0")  # tests side by side need not wait for each other's runs


@pytest.fixture(scope="session", autouse=True)
def hears_interrupts():
    """A shell makes what it starts in the background deaf to SIGINT, and tests that send it would wait in vain."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def digits():
    """The default data set is there, whichever test comes first on a new machine."""
    from helpers.data import sets

    sets.ensure("digits")


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Workers side by side share the cores, which threads that wait for each other would keep busy."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def whole_fork_server():
    """The first ranks, too, wait until the fork server has imported all; else each imports the rest by itself."""
    from helpers.launcher import client

    open_run = client.Server.open_run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client.Server, "open_run", lambda server: server.prepare() or open_run(server))
        yield


@pytest.fixture(scope="module", autouse=True)
def emulated_card(request):
    """The emulated NPU is compiled before the first test of it: whoever compiles it says so among a script's output."""
    if request.path.parent.name in ("npu", "migrate") or "npu" in request.path.stem:
        from platforms.npu.recorded import why_missing

        why_missing()
