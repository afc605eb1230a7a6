"""Collectives of platforms.horovod drawn at random: kinds, dtypes, shapes, process sets, in one order or in several."""

import random

import pytest
from hvd_cases import traffic

import helpers

long = pytest.mark.long


@pytest.mark.parametrize("size, count", [(3, 20), *(pytest.param(size, 40, marks=long) for size in (2, 3, 4))])
def test_each_is_right_and_where_orders_differ_right_or_refused(size, count):
    seed = random.randrange(2**32)
    refused = helpers.launch(traffic.play_drawn, size, count, seed, threads=1, timeout=1800)
    assert sum(refused) > 0, f"no plan of seed {seed} was crooked"
