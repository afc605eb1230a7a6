"""Collectives of platforms.horovod drawn at random: kinds, dtypes, shapes, process sets, any order on every rank."""

import os
import threading
from multiprocessing.connection import Listener

import pytest
from hvd_cases import forms, traffic
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import helpers

DTYPES = ["uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
PATIENCE = 200  # seconds for one plan; a plan takes some milliseconds


class Ranks:
    """Ranks that stay, so that hundreds of plans cost one launch; after a failure new ones are started."""

    def __init__(self, size):
        self.size, self.lines = size, {}

    def __enter__(self):
        return self

    def start(self):
        key = os.urandom(16)
        with Listener(authkey=key) as door:
            self.thread = threading.Thread(target=self._launch, args=(door.address, key), daemon=True)
            self.thread.start()
            for _ in range(self.size):
                line = door.accept()
                self.lines[line.recv()] = line

    def _launch(self, address, key):
        try:
            helpers.launch(traffic.serve, self.size, address, key, threads=1)
        except helpers.RankError:
            pass  # the rank has told the test

    def play(self, plan):
        if not self.lines:
            self.start()
        for line in self.lines.values():
            line.send(plan)
        silent = [r for r, line in self.lines.items() if not line.poll(PATIENCE)]
        answers = []
        for rank in set(self.lines) - set(silent):
            try:
                answers.append(self.lines[rank].recv())
            except EOFError:
                silent.append(rank)
        if silent or any(answers):
            self.__exit__()
            raise AssertionError("; ".join(filter(None, answers)) or f"ranks {silent} gave no answer")

    def __exit__(self, *error):
        for line in self.lines.values():
            try:
                line.send(None)
                line.close()
            except OSError:
                pass
        if self.lines:
            self.thread.join(10)
        self.lines = {}


@st.composite
def plans(draw, size):
    """A plan for `size` ranks: see hvd_cases/traffic.py."""
    ranks = list(range(size))
    subsets = st.lists(st.sampled_from(ranks), min_size=1, max_size=size - 1, unique=True).map(
        lambda s: tuple(sorted(s))
    )
    sets = draw(st.lists(subsets, max_size=3, unique=True)) if size > 1 else []
    act = st.fixed_dictionaries(
        {
            "form": st.sampled_from(traffic.ASYNC),
            "dtype": st.sampled_from(DTYPES),
            "rows": st.integers(0, 7),
            "op": st.sampled_from(["average", "sum", "min", "max"]),
            "salt": st.integers(0, 1000),
            "tail": st.sampled_from([(), (0,), (3,), (2, 2), (300,)]),
            "members": st.sampled_from([ranks, *map(list, sets)]),
            "layout": st.sampled_from([*forms.LAYOUTS]),
            "scales": st.just((1.0, 1.0)),
        }
    )
    acts = draw(st.lists(act, min_size=1, max_size=16))
    for number, one in enumerate(acts):
        one["name"], one["shape"] = f"{number}", (one.pop("rows"), *one.pop("tail"))
        if "reducescatter" in one["form"] and one["op"] in ("min", "max"):
            one["op"] = "sum"
    orders = [draw(st.permutations(range(len(acts)))) for _ in ranks]
    turns = draw(st.sampled_from([1, 2, 3, 5]))  # from the third on, most requests have numbers
    return {"sets": sets, "acts": acts, "orders": orders, "turns": turns, "seed": draw(st.integers(0, 99))}


long = pytest.mark.long


@pytest.mark.parametrize("size, count", [(3, 10), *(pytest.param(size, 40, marks=long) for size in (2, 3, 4))])
def test_any_order_on_any_rank(size, count):
    with Ranks(size) as ranks:
        # No shrinking: a plan that hangs would be tried again and again, each time until patience ends.
        @settings(
            max_examples=count,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(plans(size))
        def check(plan):
            ranks.play(plan)

        check()


@pytest.mark.parametrize(
    "size, threshold, count",
    [
        (2, "5000", 200),
        *(pytest.param(2, threshold, 200, marks=long) for threshold in ("0", "100")),
        *(pytest.param(size, None, 1000, marks=long) for size in (2, 3, 4)),
    ],
)
def test_many_tensors_in_flight_with_any_size_of_the_fusion_buffer(size, threshold, count):
    env = {"HOROVOD_FUSION_THRESHOLD": threshold, "HOROVOD_CYCLE_TIME": "1"} if threshold else None
    helpers.launch(traffic.many, size, count, threads=1, timeout=1800, env=env)
