"""What goes wrong with ranks: they disagree, stall, die, leave; and the ways in which they are started."""

import functools
from concurrent.futures import ThreadPoolExecutor
from tempfile import mkdtemp

import pytest
from hvd_cases import lost

import helpers
from helpers import releases

WAYS = ("exception", "exit", "kill")
DEATHS = [  # (size, victim, how, what the others wait for); child: a data loader's worker holds the rank's sockets
    (2, 0, "kill", "traffic"),
    (3, 1, "exception", "traffic"),
    (3, 2, "exit", "barrier"),
    (3, 1, "kill", "join"),
    (2, 0, "kill", "idle"),
    (3, 1, "kill", "sets"),
    (2, 0, "shutdown", "traffic"),
    (3, 0, "return", "barrier"),
    (2, 0, "kill", "traffic", "child"),
]
MORE_DEATHS = [
    *((2, victim, how, "traffic") for victim in (0, 1) for how in WAYS if (victim, how) != (0, "kill")),
    (4, 2, "exception", "traffic"),
    (3, 0, "exception", "join"),
    (3, 1, "kill", "broadcast"),
    (3, 2, "exit", "grouped"),
    (3, 0, "exit", "sets"),
    (2, 1, "exit", "barrier", "child"),
    (3, 1, "shutdown", "join"),
    (2, 0, "sys.exit", "traffic"),
]
SOON = 100  # seconds: not quick, but noticed, since a story that nobody ends lasts 200 and a rank's own patience 300
PATIENT = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1"}
STRICT = {**PATIENT, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2"}
OTHERS = {
    "late": {"work": "late", "size": 3, "victim": 0, "env": PATIENT},
    "too late": {"work": "too_late", "size": 3, "victim": 2, "env": STRICT},
    "never": {"work": "never_comes", "size": 3, "started": 2, "env": {"HOROVOD_START_TIMEOUT": "8"}},
    "end 1": {"work": "ends_at_its_own_time", "size": 3, "victim": 0, "how": "shutdown"},
    "end 2": {"work": "ends_at_its_own_time", "size": 3, "victim": 2, "how": "nothing"},
    "forks": {"work": "forks", "size": 2},
    "interrupted": {"work": "interrupted", "size": 2},
    "in flight": {"work": "shuts_down_in_flight", "size": 2},
    "stopped": {"work": "stopped_for_a_while", "size": 2, "victim": 0},
}


def in_processes(stories):
    """What the ranks of the stories saw; two mothers share the stories, most of which wait."""
    with ThreadPoolExecutor(2) as threads:
        halves = [
            threads.submit(helpers.launch, lost.mother, 1, stories[half::2], threads=1, timeout=900) for half in (0, 1)
        ]
        even, odd = (half.result()[0] for half in halves)
    return [(odd if n % 2 else even)[n // 2] for n in range(len(stories))]


@functools.lru_cache(None)
def played(deaths):
    stories = [
        {"work": "crash", "seed": n, "size": size, "victim": victim, "how": how, "wait": wait, "child": bool(child)}
        for n, (size, victim, how, wait, *child) in enumerate(deaths)
    ]
    return dict(zip(deaths, zip(stories, in_processes(stories), strict=True), strict=True))


@functools.lru_cache(None)
def frozen(cases):
    stories = [
        {
            "module": "hvd_cases.stories",
            "work": "frozen",
            "size": size,
            "victim": victim,
            "where": where,
            "folder": mkdtemp(),
            "env": {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "8"},
        }
        for size, victim, where in cases
    ]
    return dict(zip(cases, in_processes(stories), strict=True))


@pytest.fixture(scope="module")
def seen():
    stories = [{**story, "module": "hvd_cases.stories"} for story in OTHERS.values()]
    return dict(zip(OTHERS, in_processes(stories), strict=True))


def named(deaths, *marks):
    return [pytest.param(tuple(deaths), one, id="-".join(map(str, one)), marks=marks) for one in deaths]


@pytest.mark.parametrize("deaths, one", named(DEATHS) + named(MORE_DEATHS, pytest.mark.long))
def test_a_lost_rank_is_named_to_all_others(deaths, one):
    story, told = played(deaths)[one]
    died = told["ranks"][story["victim"]]["when"]
    for rank, saw in enumerate(told["ranks"]):
        if rank == story["victim"]:
            continue
        assert saw is not None, f"rank {rank} saw nothing (exit codes {told['codes']}):\n{told['said']}"
        assert {"HorovodInternalError", "RankLost"} <= set(saw["kinds"]), saw
        assert f"rank {story['victim']}" in saw["text"].lower(), saw["text"]
        noticed = saw["when"] - died if story["wait"] != "idle" else saw["took"] - 0.7
        assert noticed < SOON, f"rank {rank} learnt of it after {noticed:.2f} s"
        assert "RankLost" in saw["again"]["kinds"] and saw["again"]["took"] < SOON, saw["again"]
        assert saw["shutdown"] is None
        assert told["codes"][rank] == 0
    code = {"exception": 1, "exit": 7, "kill": -9, "sys.exit": 3}.get(story["how"], 0)
    assert told["codes"][story["victim"]] == code
    assert told["seconds"] < SOON


FROZEN = ((2, 0, "inside"), (3, 1, "outside"))
MORE_FROZEN = ((3, 0, "inside"), (2, 0, "outside"), (3, 0, "outside"), (2, 1, "inside"), (3, 1, "inside"))


@pytest.mark.parametrize("cases, one", named(FROZEN) + named(MORE_FROZEN, pytest.mark.long))
def test_a_frozen_rank_is_named_by_one_that_is_alive_and_ends_the_job(cases, one):
    victim, told = one[1], frozen(cases)[one]
    named, ended = (
        [line for line in told["said"].splitlines() if line.startswith(f"hvd: rank {victim} (process") and what in line]
        for what in ("kill -CONT", "the job ends")
    )
    assert named and ended, told
    for rank, saw in enumerate(told["ranks"]):
        if rank != victim:
            assert saw is not None and "RankLost" in saw["kinds"] and f"rank {victim} (process" in saw["text"], told
            assert "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS" in saw["text"], saw
    assert "hung" not in told["codes"], told


def test_a_stalled_rank_is_reported_with_tensor_and_rank(seen):
    told = seen["late"]
    assert told["ranks"] == [{"sum": [3] * 2}] * 3, told
    assert any("lonely tensor" in line and "rank 0" in line for line in told["said"].splitlines()), told["said"]


def test_a_stall_ends_the_job_when_asked_to(seen):
    for rank, saw in enumerate(seen["too late"]["ranks"]):
        assert saw is not None and "HorovodInternalError" in saw["kinds"] and saw["after"] == [3] * 2, seen["too late"]
        if rank != 2:
            assert "lonely tensor" in saw["text"] and "rank 2" in saw["text"] and saw["took"] < SOON, saw
    assert max(saw["took"] for saw in seen["too late"]["ranks"][:2]) > 1.5, "the first to wait gave up too early"


def test_a_rank_that_never_comes_is_named(seen):
    for saw in seen["never"]["ranks"]:
        assert saw is not None and saw["took"] < SOON, seen["never"]
        assert "RankLost" in saw["kinds"] and "rank 2" in saw["text"], saw["text"]


def test_the_end_of_a_process_is_quiet(seen):
    for told in (seen["end 1"], seen["end 2"]):
        assert set(told["codes"]) == {0} and None not in told["ranks"], told  # "hung": it has waited out its patience
        assert not releases.strip_gloo_banner(told["said"]), told["said"]


def test_what_was_only_asked_for_is_refused_at_shutdown(seen):
    for saw in seen["in flight"]["ranks"]:
        assert "HorovodInternalError" in saw["kinds"] and saw["after"] == 2.0, seen["in flight"]


def test_nothing_happens_when_a_rank_has_forked_or_stands_still_for_a_second(seen):
    assert seen["forks"]["ranks"] == [{"total": [2.0] * 6}] * 2, seen["forks"]
    assert seen["stopped"]["ranks"] == [{"total": [2.0] * 3}] * 2, seen["stopped"]


def test_the_stop_button_works_while_a_rank_waits(seen):
    assert seen["interrupted"]["ranks"][0]["took"] < SOON, seen["interrupted"]
