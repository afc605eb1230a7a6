"""Run a test on the emulated NPU, in ranks of its own: a device stays in a process once it is loaded."""

import functools
import shutil

import pytest

import helpers
import platforms.npu
from platforms.npu import loading

needs_npu = pytest.mark.skipif(
    not loading.real_torch_npu() and not any(map(shutil.which, ("c++", "g++", "clang++"))),
    reason="the emulated NPU has to be compiled, and there is no C++ compiler here",
)


def with_device(body, *args, **kwargs):
    """What a rank does: load the device, then the test."""
    platforms.npu.load()
    return body(*args, **kwargs)


def on_npu(test=None, *, env=None):
    """The test runs in one rank, with the device loaded."""
    if test is None:
        return functools.partial(on_npu, env=env)

    @needs_npu
    @functools.wraps(test)
    def run(*args, **kwargs):
        helpers.launch(with_device, 1, test, *args, env=env, timeout=900, **kwargs)

    return run
