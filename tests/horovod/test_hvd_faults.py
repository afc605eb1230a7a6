"""What goes wrong with ranks: they disagree, stall, die, leave; and the ways in which they are started."""

import functools
import json
import os
import shutil
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from tempfile import mkdtemp

import pytest
from hvd_cases import lost
from kernel import ROOT

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
    *((size, victim, WAYS[(victim + size) % 3], "traffic") for size in (3, 4) for victim in range(size)),
    (3, 0, "kill", "barrier"),
    (3, 0, "exception", "join"),
    (3, 1, "kill", "broadcast"),
    (3, 2, "exit", "grouped"),
    (3, 1, "exception", "idle"),
    (3, 0, "exit", "sets"),
    (3, 2, "kill", "sets"),
    (2, 1, "exception", "traffic", "child"),
    (2, 1, "exit", "barrier", "child"),
    (2, 1, "return", "traffic"),
    (3, 2, "shutdown", "grouped"),
    (3, 1, "shutdown", "join"),
    (2, 0, "sys.exit", "traffic"),
]
SOON = 100  # seconds: not quick, but noticed, since a story that nobody ends lasts 200 and a rank's own patience 300
PATIENT = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1"}
STRICT = {**PATIENT, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2"}
OTHERS = {
    "late": {"work": "late", "size": 3, "victim": 0, "env": PATIENT},
    "quiet": {"work": "late", "size": 2, "victim": 0, "env": {**PATIENT, "HOROVOD_STALL_CHECK_DISABLE": "1"}},
    "too late": {"work": "too_late", "size": 3, "victim": 2, "env": STRICT},
    "never": {"work": "never_comes", "size": 3, "started": 2, "env": {"HOROVOD_START_TIMEOUT": "8"}},
    "init": {"work": "comes_late_to_init", "size": 3, "victim": 0},
    "end 1": {"work": "ends_at_its_own_time", "size": 3, "victim": 0, "how": "shutdown"},
    "end 2": {"work": "ends_at_its_own_time", "size": 3, "victim": 2, "how": "nothing"},
    "early": {"work": "asks_and_leaves", "size": 2, "victim": 1},
    "forks": {"work": "forks", "size": 2},
    "interrupted": {"work": "interrupted", "size": 2},
    "in flight": {"work": "shuts_down_in_flight", "size": 2},
    "stopped": {"work": "stopped_for_a_while", "size": 2, "victim": 0},
    "alone": {"work": "alone", "size": 1},
    "one rank": {"work": "alone", "size": 1, "always": True},
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


@pytest.mark.long
def test_the_timeout_of_gloo_ends_a_collective_and_the_silent_rank_is_named():
    env = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "6", "HOROVOD_START_TIMEOUT": "100"}
    story = {"module": "hvd_cases.stories", "work": "frozen", "size": 2, "where": "inside", "env": env}
    stories = [{**story, "victim": victim, "folder": mkdtemp()} for victim in (0, 1)]
    for victim, told in enumerate(in_processes(stories)):
        saw = told["ranks"][1 - victim]
        assert "RankLost" in saw["kinds"] and "Timed out" in saw["text"], told
        assert f"rank {victim} showed no sign of life" in saw["text"], told


def test_a_stalled_rank_is_reported_with_tensor_and_rank(seen):
    told = seen["late"]
    assert told["ranks"] == [{"sum": [3] * 2}] * 3, told
    assert any("lonely tensor" in line and "rank 0" in line for line in told["said"].splitlines()), told["said"]
    told = seen["quiet"]  # switched off
    assert told["ranks"] == [{"sum": [2, 2]}] * 2 and "lonely" not in told["said"]


def test_a_stall_ends_the_job_when_asked_to(seen):
    for rank, saw in enumerate(seen["too late"]["ranks"]):
        assert saw is not None and "HorovodInternalError" in saw["kinds"] and saw["after"] == [3] * 2, seen["too late"]
        if rank != 2:
            assert "lonely tensor" in saw["text"] and "rank 2" in saw["text"] and saw["took"] < SOON, saw
    assert max(saw["took"] for saw in seen["too late"]["ranks"][:2]) > 1.5, "the first to wait gave up too early"


def test_a_rank_that_never_comes_is_named_and_a_late_one_is_waited_for(seen):
    for saw in seen["never"]["ranks"]:
        assert saw is not None and saw["took"] < SOON, seen["never"]
        assert "RankLost" in saw["kinds"] and "rank 2" in saw["text"], saw["text"]
    assert seen["init"]["ranks"] == [{"sum": [3.0]}] * 3, seen["init"]


@pytest.mark.parametrize("name", ["end 1", "end 2", "early"])
def test_the_end_of_a_process_is_quiet(name, seen):
    told = seen[name]
    assert set(told["codes"]) == {0} and None not in told["ranks"], told  # "hung": it has waited out its patience
    assert not releases.strip_gloo_banner(told["said"]), told["said"]


def test_what_was_only_asked_for_is_refused_when_a_rank_leaves(seen):
    saw = seen["early"]["ranks"][0]
    assert "RankLost" in saw["kinds"] and "rank 1 has shut down" in saw["text"], saw
    for saw in seen["in flight"]["ranks"]:
        assert "HorovodInternalError" in saw["kinds"] and saw["after"] == 2.0, seen["in flight"]


@pytest.mark.parametrize(
    "name, answer",
    [
        ("alone", [{"world": [0, 1, 0, 1], "sum": [1.0]}]),
        ("one rank", [{"world": [0, 1, 0, 1], "sum": [1.0]}]),
        ("forks", [{"total": [2.0] * 6}] * 2),
        ("stopped", [{"total": [2.0] * 3}] * 2),
    ],
)
def test_nothing_happens(name, answer, seen):
    """In a world of one; when a rank has forked children; when a rank stands still for a second."""
    assert seen[name]["ranks"] == answer, seen[name]


def test_the_stop_button_works_while_a_rank_waits(seen):
    assert seen["interrupted"]["ranks"][0]["took"] < SOON, seen["interrupted"]


def ends_without_shutdown(naps, late):
    import time

    import torch

    import platforms.horovod.torch as hvd

    hvd.init()
    total = hvd.allreduce(torch.ones(1), op=hvd.Sum).item()
    time.sleep(late[hvd.rank()])
    hvd.allreduce_async(torch.ones(1), name="forgotten")
    time.sleep(naps[hvd.rank()])
    return total


@pytest.mark.parametrize(
    "late, naps",
    [
        ((0, 0.3, 0), (0.3, 0, 0)),
        pytest.param((0, 0, 0), (0, 0.3, 0.1), marks=pytest.mark.long),
        pytest.param((0.3, 0, 0.1), (0, 0, 0), marks=pytest.mark.long),
    ],
)
def test_launched_ranks_need_not_shut_down(naps, late, capfd):
    assert helpers.launch(ends_without_shutdown, 3, naps, late, threads=1, timeout=300) == [3.0] * 3
    assert not "".join(capfd.readouterr()).strip()


def test_a_script_that_uses_torch_distributed_too(tmp_path):
    story = {"module": "hvd_cases.stories", "work": "beside_a_default_group", "size": 2, "file": str(tmp_path / "meet")}
    ((told,),) = helpers.launch(lost.mother, 1, [story], threads=1, timeout=300)
    assert told["ranks"] == [{"total": [2.0] * 11}] * 2, told


SCRIPT = textwrap.dedent(
    """
    import json, os, sys, torch
    import platforms.horovod.torch as hvd
    hvd.init()
    total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum).item()
    answer = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size(), total]
    open(os.path.join(sys.argv[1], str(hvd.rank())), "w").write(json.dumps(answer))
    """
)
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"]
STARTERS = {
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"],
    "mpirun": [*MPIRUN, sys.executable],
    "mpirun as on two hosts": [*MPIRUN, "env", "OMPI_COMM_WORLD_LOCAL_SIZE=1", sys.executable],
}


@pytest.mark.long  # notebook 08 starts a script with torchrun and with mpirun, too
@pytest.mark.parametrize("starter", STARTERS)
def test_started_by(starter, tmp_path):
    if "mpirun" in starter and shutil.which("mpirun") is None:
        pytest.skip("Open MPI's mpirun is not installed (Debian: openmpi-bin)")
    script, answers = tmp_path / "script.py", tmp_path / "answers"
    script.write_text(SCRIPT)
    answers.mkdir()
    hidden = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    env.update(PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1", TMPDIR=str(tmp_path))
    done = subprocess.run(
        [*STARTERS[starter], str(script), str(answers)], env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "rror" not in done.stderr, done.stderr
    read = [json.loads((answers / str(rank)).read_text()) for rank in range(2)]
    assert read == [[rank, 2, rank, 2, 0, 1, 3.0] for rank in range(2)]
    assert not [path.name for path in tmp_path.rglob("helpers-hvd*/*")], "a meeting file was left behind"
