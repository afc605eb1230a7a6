"""Run a test on the emulated NPU, in ranks of its own: a device stays in a process once it is loaded."""

import contextlib
import functools
import random
import shutil
import socket

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


def images(folder, training, validation):
    """A folder like ImageNet's. Each picture has one colour, which no crop or flip changes: runs can be compared."""
    from PIL import Image

    for split, count in (("train", training), ("val", validation)):
        for number in range(count):
            colour = [(37 * number) % 97] * 3
            colour[number % 3] = 160 + (53 * number) % 90
            path = folder / split / f"class{number % 3}" / f"{number:02}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (40, 40), tuple(colour)).save(path)
    return folder


def free_port() -> int:
    """One that the system gives to nobody who lets it choose, so that it is still free when a script binds it."""
    while True:
        port = random.randrange(10_000, 20_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
