"""Which launch does what. A plan follows from the seed, the kernel and the launch's number alone."""

import random
from dataclasses import asdict, dataclass

# Kinds of planted failure and how often each of them is drawn.
PLANTED = {
    "exception": 3,
    "sigkill": 3,
    "hang": 2,
    "interrupt": 4,
    "exit": 2,
    "collective": 3,
    "stop": 3,
    "persistent": 4,
}
BACKGROUND = 0.25  # share of the launches in the background
EXTRAS = ("", "", "", "loader", "chatty", "large")  # what else the ranks do
LONG = 20.0  # s that a rank waits which something else has to end


@dataclass(frozen=True)
class Plan:
    """One launch; `rank` is the one with the failure, or the one that all wait for; times are in seconds."""

    number: int
    kind: str = "healthy"
    ranks: int = 2
    group: bool = True  # whether the ranks join a process group
    rank: int | None = None
    delay: float = 0.0  # until the failure
    how: str = ""  # of the kind: which way a rank dies, when the interrupt comes, what happens to persistent ranks
    code: int = 0  # of os._exit
    linger: float = 0.0  # that `rank` waits for its end from outside
    timeout: float | None = None
    background: bool = False
    queued: int = 0  # healthy background launches behind this one, the last of which is stopped in the queue
    extra: str = ""

    def as_dict(self):
        return asdict(self)

    def __str__(self):
        """The plan without what is as usual."""
        usual = Plan(self.number)
        told = {name: value for name, value in asdict(self).items() if value != getattr(usual, name)}
        told = {name: round(value, 4) if isinstance(value, float) else value for name, value in told.items()}
        return f"{told.pop('kind', 'healthy')}({', '.join(f'{name}={value!r}' for name, value in told.items())})"


def plan(seed, kernel, number) -> Plan:
    """Launch `number` (from 1) of kernel `kernel`; one of each three in a row has a failure."""
    block, place = divmod(number - 1, 3)
    chance = random.Random(f"{seed}/{kernel}/{number}")
    ranks, group, extra = chance.randint(1, 4), chance.random() < 0.6, chance.choice(EXTRAS)
    background = chance.random() < BACKGROUND
    queued = chance.choice((0, 1, 2)) if background else 0
    common = dict(ranks=ranks, group=group, extra=extra, background=background, queued=queued)
    if random.Random(f"{seed}/{kernel}/block {block}").randrange(3) != place:
        return Plan(number, **common)
    kind = chance.choices(list(PLANTED), PLANTED.values())[0]
    common.update(kind=kind, rank=chance.randrange(ranks))
    return Plan(number, **{**common, **_details(kind, ranks, chance, background)})


def _details(kind, ranks, chance, background):
    """What a failure of this kind needs to be told."""
    delay = chance.choice((0.0, chance.uniform(0, 0.02), chance.uniform(0, 0.3)))
    if kind == "exit":
        return dict(delay=delay, code=chance.choice((0, 1, 7, 77)))
    if kind == "hang":
        return dict(timeout=chance.uniform(1.2, 2.0))
    if kind == "sigkill":
        return dict(delay=chance.uniform(0, 0.4), linger=LONG)
    if kind == "collective":
        at_least = max(2, ranks)
        how = chance.choice(("sigkill", "exit", "exception"))
        return dict(ranks=at_least, group=True, delay=chance.uniform(0, 0.2), how=how, code=9)
    if kind == "persistent":
        how = chance.choice(("exception", "hang", "sigkill", "interrupt"))
        return dict(how=how, delay=delay, linger=LONG, timeout=1.5, background=False, queued=0)
    if kind == "stop":
        return dict(background=True, delay=delay, linger=LONG)
    if kind == "interrupt":
        return _interrupt(chance, background)
    return dict(delay=delay)


def _interrupt(chance, background):
    how = "middle" if background else chance.choice(("start", "middle", "end"))
    if how == "start":
        return dict(how=how, delay=chance.choice((0.0, chance.uniform(0, 0.02))), linger=LONG)
    if how == "middle":
        return dict(how=how, delay=chance.uniform(0, 0.5), linger=LONG)
    return dict(how=how, delay=chance.uniform(0.03, 0.4), extra="")  # about as long as such a launch takes
