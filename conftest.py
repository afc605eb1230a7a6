"""Settings and mends of nbval, the plugin that runs the notebooks as tests.

`pytest --nbval notebooks` works with no other option. nbval 0.11.0 has six defects that hide
failures or invent them; they are mended here, and tests/notebooks/test_nbval_shims.py shows each of them
without and with its mend.
"""

import os
import subprocess
import tempfile
import time
from pathlib import Path

import nbval.kernel
import nbval.plugin
import pytest
from jupyter_client import KernelManager
from traitlets import default

from tools.render_notebooks import kernel_environment

ROOT = Path(__file__).resolve().parent
# Not run by `pytest --nbval notebooks`: the same code again, and what `make test-long` runs. To run one, name it.
collect_ignore = ["notebooks/zh", "notebooks/more"]
LONG = (  # files that take longest, the longest first, in `make test` (notebooks lead) or in `make test-long`
    "12_model_too_large",
    "09_several_machines",
    "06_compiler",
    "03_ddp",
    "07_npu_migration",
    "13_split_the_model",
    "14_long_sequences_and_experts",
    "08_horovod_api",
    "05_batch_and_accuracy",
    "11_when_it_breaks",
    "01_baseline",
    "04_mixed_precision",
    "02_data_parallel",
    "00_start_here",
    "10_report",
    "test_site",
    "test_browser",
    "test_soak",
    "test_two_hosts",
    "test_gpu_check",
    "test_hvd_faults",
    "test_hvd_script",
    "test_sharding",
    "test_hvd_ops",
    "test_hvd_random",
    "test_migrated_scripts",
    "test_compiled_run",
    "test_optimize",
    "test_timeline",
    "test_all_figures",
    "test_launch_kernel",
    "test_background",
    "test_persistent_ranks_kernel",
    "test_persistent_ranks",
    "test_checks_on_ranks",
    "test_page",
    "test_apex",
    "test_npu",
    "test_launch_python",
    "test_launch",
    "test_group",
    "test_config",
    "test_pages",
    "test_train",
    "test_precision",
    "test_equivalence",
    "test_nbval_shims",
    "test_npu_script",
    "test_studies",
    "test_runs",
    "test_check_hvd",
    "test_check_npu",
)


def pytest_configure(config):
    # What tests and notebooks record must not end up among the reader's own results.
    results = tempfile.TemporaryDirectory(prefix="helpers-results-", ignore_cleanup_errors=True)
    config.add_cleanup(results.cleanup)
    environment = pytest.MonkeyPatch()
    config.add_cleanup(environment.undo)
    environment.setenv("HELPERS_RESULTS", results.name)

    # Defaults of nbval; both options have an older spelling, which must not be given as well. They
    # are set here since a path in pyproject.toml would be relative to wherever pytest is started.
    option = config.option
    if not (option.current_env or option.nbval_kernel_name):
        option.nbval_current_env = True
    if not (option.sanitize_with or option.nbval_sanitize_with):
        option.nbval_sanitize_with = str(ROOT / "tests" / "sanitize.cfg")
    nbval.plugin.RunningKernel = Kernel
    nbval.kernel.KernelManager = SocketFiles


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(config, items):
    """Start the long files first, so that no worker is left with one at the end while the others are idle."""
    for file in {item.parent for item in items if isinstance(item, nbval.plugin.IPyNbCell)}:
        # Mend 6: libraries warn on stderr, on a busy machine of slow connections, and what a child process prints there
        # may come in a later cell. Errors are exceptions or exit statuses, which are compared.
        file.skip_compare = (*file.skip_compare, "stderr")
        if file.path.parent.name == "more":
            file.add_marker("long")
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


class SocketFiles(KernelManager):
    """Speaks with its kernel by way of files: of kernels that start side by side, some get the same free ports."""

    transport = "ipc"

    @default("ip")
    def _ip_default(self):  # the files are called like this, and then -1 to -5
        return tempfile.mktemp(dir=os.environ["HELPERS_RESULTS"])


class Kernel(nbval.kernel.RunningKernel):
    """nbval's kernel with four of the six mends; the methods are those that nbval calls."""

    last_reply = None

    def __init__(self, kernel_name, cwd=None, startup_timeout=60):
        # Mend 1: what child processes print is shown in the cell (see kernel_environment).
        self.km, self.kc = nbval.kernel.start_new_kernel(
            startup_timeout=max(startup_timeout, 600),  # on a busy machine the imports alone take a minute
            kernel_name=kernel_name,
            stderr=subprocess.DEVNULL,
            cwd=cwd,
            env=kernel_environment(os.environ["HELPERS_RESULTS"]),
        )
        self._ensure_iopub_up()

    def execute_cell_input(self, cell_input, allow_stdin=None):
        # Mend 2: a trailing semicolon silences the last expression, which IPython looks up in the
        # history, so the cell has to be stored there.
        self.last_reply = None
        return self.kc.execute(cell_input, store_history=True, allow_stdin=allow_stdin, stop_on_error=False)

    def await_reply(self, msg_id, timeout=None):
        # Mend 3: a kernel that died fails the cell within a second, not after the cell timeout.
        end = float("inf") if timeout is None else time.monotonic() + timeout
        while True:
            left = end - time.monotonic()
            if left <= 0:
                raise nbval.kernel.Empty
            try:
                message = self.get_message(stream="shell", timeout=min(1.0, left))
            except nbval.kernel.Empty:
                if not self.is_alive():
                    raise RuntimeError("the kernel died while it ran this cell") from None
                continue
            if message["parent_header"].get("msg_id") == msg_id:
                self.last_reply = message["content"]
                if self.last_reply["status"] == "aborted":
                    raise RuntimeError("the kernel refused to run this cell")
                return

    def stop(self):
        # Mend 4: the kernel is asked to end before it is killed, so exit handlers run and stop the
        # processes that it started.
        self.kc.stop_channels()
        self.km.shutdown_kernel(now=False)
        del self.km


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    result = yield
    # Mend 5: a misspelt magic sends no error message, only a reply that says error; without a
    # comparison of outputs nbval calls that a pass.
    if isinstance(item, nbval.plugin.IPyNbCell) and not item.options["check_exception"]:
        reply = item.parent.kernel.last_reply or {}
        if reply.get("status") == "error":
            item.raise_cell_error(f"the kernel replied with {reply.get('ename')}: {reply.get('evalue')}")
    return result
