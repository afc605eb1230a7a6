"""Bad input to `launch` is refused at once, by name, before any process starts."""

import threading

import pytest

from helpers import device, launch
from helpers.launcher import client


@pytest.fixture(autouse=True)
def no_process_may_start(monkeypatch):
    monkeypatch.setattr(client, "server", lambda *_: pytest.fail("a process was about to start"))


def fine():
    return "fine"


@pytest.mark.parametrize("nprocs", [0, -1, 2.5, "2", True, None, 10**6], ids=str)
def test_number_of_ranks(nprocs):
    error = ValueError if type(nprocs) is int else TypeError
    with pytest.raises(error, match="nprocs|ranks"):
        launch(fine, nprocs)


def test_more_ranks_than_accelerators(monkeypatch):
    monkeypatch.setattr(device, "accelerator_kind", lambda: "cuda")
    monkeypatch.setattr(device, "_count", lambda kind: 2)
    with pytest.raises(ValueError, match=r"3 ranks.*2 accelerator.*HELPERS_DEVICE"):
        launch(fine, 3)
    with pytest.raises(ValueError, match="1 accelerator"):
        launch(fine, 2, env={"CUDA_VISIBLE_DEVICES": "1"})


def test_what_cannot_be_called_so():
    for thing in (3, "fine", None, [fine]):
        with pytest.raises(TypeError, match="needs a function"):
            launch(thing, 2)
    with pytest.raises(TypeError, match=r"fine\(\) cannot be called"):
        launch(fine, 2, "too many")


lock = threading.Lock()


def test_what_cannot_be_pickled_is_named():
    numbers = (i for i in range(3))
    nested = lambda: lock  # noqa: E731

    def uses_both():
        return next(numbers), nested()

    uses_both.__module__ = nested.__module__ = "__main__"  # as if defined in a cell
    with pytest.raises(TypeError) as caught:
        launch(uses_both, 2)
    assert "uses_both()" in str(caught.value)
    assert "'numbers' (generator)" in str(caught.value) and "'lock' (lock)" in str(caught.value)


def test_argument_that_cannot_be_pickled_is_named():
    with pytest.raises(TypeError, match=r"argument 1 \(lock\).*argument other= \(lock\)"):
        launch(lambda *a, **k: None, 2, threading.Lock(), other=threading.Lock())


@pytest.mark.parametrize(
    "name, values, error",
    [
        ("timeout", [0, -1, "1", True, float("nan"), float("inf")], ValueError),
        ("threads", [0, -2, 1.5, "1", True], ValueError),
        ("env", [{"A": 1}, {1: "a"}, {"A": None}], TypeError),
        ("on_event", ["print"], TypeError),
    ],
)
def test_options(name, values, error):
    for value in values:
        with pytest.raises(error, match=name):
            launch(fine, 2, **{name: value})


def test_start_method(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("HELPERS_START_METHOD", "telepathy")
    with pytest.raises(ValueError, match="'fork' or 'spawn'"):
        launch(fine, 2)
