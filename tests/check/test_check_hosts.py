"""The checks of notebook 09: right answers pass, and each kind of mistake has a hint of its own."""

from exercises import Checks


class TestHosts(Checks):
    notebook = "09_several_machines.ipynb"
    exercises = {
        "where": ("hosts-turn-where", "where"), "ring_seconds": ("hosts-turn-ring", "ring_seconds"),
        "not_hidden": ("hosts-turn-hidden", "not_hidden"),
    }  # fmt: skip
    mistakes = {
        "where": [
            lambda rank, each: (rank % each, rank // each), lambda rank, each: (rank // each, rank),
            lambda rank, each: (rank % 2, rank % each), lambda rank, each: (rank,), lambda rank, each: 1 / 0,
        ],
        "ring_seconds": [
            lambda size, n, a, b: 2 * (n - 1) / n * size * b, lambda size, n, a, b: (n - 1) * (a + size / n * b),
            (lambda size, n, a, b: 2 * (n - 1) * (a + size * b), lambda size, n, a, b: a + size * b),
            lambda size, n, a, b: 2 * n * (a + size / n * b),
            lambda size, n, a, b: max(a, 2 * (n - 1) * (a + size / n * b)), lambda size, n, a, b: None,
        ],
        "not_hidden": [
            lambda backward, ready, costs: sum(costs), lambda backward, ready, costs: costs[-1],
            lambda backward, ready, costs: sum(costs) - backward,
            lambda backward, ready, costs: max(0, sum(costs) - backward),
            lambda backward, ready, costs: sum(costs) + 1, lambda backward, ready, costs: ready[9],
        ],
    }  # fmt: skip
