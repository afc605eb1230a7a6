"""What goes wrong with ranks: they disagree, stall, die, leave; and the ways in which they are started."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import hvd_lab
import hvd_lost
import pytest
from kernel import ROOT, limit

import helpers


@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks_that_disagree_are_told_and_go_on(size):
    helpers.launch(hvd_lab.run, size, "mismatch", threads=1, timeout=60)


# Every rank of every size dies once; at 2 ranks in every way.
CRASHES = [
    {"size": size, "victim": victim, "how": how, "wait": "traffic"}
    for size in (2, 3, 4)
    for victim in range(size)
    for how in (("exception", "exit", "kill") if size == 2 else (("exception", "exit", "kill")[(victim + size) % 3],))
] + [
    {"size": 3, "victim": victim, "how": how, "wait": wait}
    for wait, victim, how in [
        ("barrier", 0, "kill"), ("barrier", 2, "exit"), ("join", 1, "kill"), ("join", 0, "exception"),
        ("broadcast", 1, "kill"), ("grouped", 2, "exit"), ("idle", 0, "kill"), ("idle", 1, "exception"),
        ("sets", 1, "kill"), ("sets", 0, "exit"), ("sets", 2, "kill"),
    ]
]  # fmt: skip
CRASHES += [  # a data loader's worker holds all sockets of the dead rank
    {"size": 2, "victim": victim, "how": how, "wait": wait, "child": True}
    for victim, how, wait in [(0, "kill", "traffic"), (1, "exception", "traffic"), (1, "exit", "barrier")]
]
LEAVES = [
    {"size": size, "victim": victim, "how": how, "wait": wait}
    for size, victim, how, wait in [
        (2, 0, "shutdown", "traffic"), (2, 1, "return", "traffic"), (3, 0, "return", "barrier"),
        (3, 2, "shutdown", "grouped"), (3, 1, "shutdown", "join"), (2, 0, "sys.exit", "traffic"),
    ]
]  # fmt: skip
PATIENT = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1"}
STRICT = {**PATIENT, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2"}
OTHERS = {
    "late 2": {"work": "late", "size": 2, "victim": 1, "env": PATIENT},
    "late 3": {"work": "late", "size": 3, "victim": 0, "env": PATIENT},
    "quiet": {"work": "late", "size": 2, "victim": 0, "env": {**PATIENT, "HOROVOD_STALL_CHECK_DISABLE": "1"}},
    "too late 2": {"work": "too_late", "size": 2, "victim": 0, "env": STRICT},
    "too late 3": {"work": "too_late", "size": 3, "victim": 2, "env": STRICT},
    "never 1": {"work": "never_comes", "size": 2, "started": 1, "env": {"HOROVOD_START_TIMEOUT": "1"}},
    "never 2": {"work": "never_comes", "size": 3, "started": 2, "env": {"HOROVOD_START_TIMEOUT": "1"}},
    "init": {"work": "comes_late_to_init", "size": 3, "victim": 0},
    "end 1": {"work": "ends_at_its_own_time", "size": 3, "victim": 0, "how": "shutdown"},
    "end 2": {"work": "ends_at_its_own_time", "size": 3, "victim": 2, "how": "nothing"},
    "handles": {"work": "leaves_a_handle_behind", "size": 2, "victim": 1},
    "handles 0": {"work": "leaves_a_handle_behind", "size": 2, "victim": 1, "slow": 0},
    "handles 1": {"work": "leaves_a_handle_behind", "size": 2, "victim": 1, "slow": 1},
    "unread 0": {"work": "leaves_before_others_have_read", "size": 3, "victim": 0},
    "unread 1": {"work": "leaves_before_others_have_read", "size": 2, "victim": 1},
    "early": {"work": "asks_and_leaves", "size": 2, "victim": 1},
    "forks": {"work": "forks", "size": 2},
    "interrupted": {"work": "interrupted", "size": 2},
    "in flight": {"work": "shuts_down_in_flight", "size": 2},
    "stopped": {"work": "stopped_for_a_while", "size": 2, "victim": 0},
    "rest": {"work": "rests_after_a_loss", "size": 2, "victim": 1, "env": {"HOROVOD_CYCLE_TIME": "300"}},
    "alone": {"work": "alone", "size": 1},
    "one rank": {"work": "alone", "size": 1, "always": True},
}


def key(story):
    words = [str(story[k]) for k in ("size", "victim", "how", "wait")]
    return "-".join(words + ["child"] * ("child" in story))


@pytest.fixture(scope="module")
def seen():
    """What the ranks of all stories saw. Three mothers: the stories that mostly wait run beside those that die."""
    deaths = [{**story, "work": "crash", "seed": n} for n, story in enumerate(CRASHES + LEAVES)]
    others = [{**story, "module": "hvd_stories"} for story in OTHERS.values()]
    with ThreadPoolExecutor(3) as threads:
        runs = [threads.submit(helpers.launch, hvd_lost.mother, 1, stories, threads=1, timeout=900)
                for stories in (deaths, others[::2], others[1::2])]  # fmt: skip
        told = [one for run in runs for one in run.result()[0]]
    names = [key(story) for story in deaths] + list(OTHERS)[::2] + list(OTHERS)[1::2]
    return dict(zip(names, told, strict=True))


@pytest.mark.parametrize("story", CRASHES + LEAVES, ids=key)
def test_a_lost_rank_is_named_to_all_others_within_a_second(story, seen):
    told = seen[key(story)]
    died = told["ranks"][story["victim"]]["when"]
    for rank, saw in enumerate(told["ranks"]):
        if rank == story["victim"]:
            continue
        assert saw is not None, f"rank {rank} saw nothing (exit codes {told['codes']}):\n{told['said']}"
        assert {"HorovodInternalError", "RankLost"} <= set(saw["kinds"]), saw
        assert f"rank {story['victim']}" in saw["text"].lower(), saw["text"]
        noticed = saw["when"] - died if story["wait"] != "idle" else saw["took"] - 0.7
        assert noticed < limit(1.0), f"rank {rank} learnt of it after {noticed:.2f} s"
        assert "RankLost" in saw["again"]["kinds"] and saw["again"]["took"] < limit(0.2), saw["again"]
        assert saw["shutdown"] is None
        assert told["codes"][rank] == 0
    code = {"exception": 1, "exit": 7, "kill": -9, "sys.exit": 3}.get(story["how"], 0)
    assert told["codes"][story["victim"]] == code
    assert told["seconds"] < limit(5)


@pytest.mark.parametrize("name", ["late 2", "late 3"])
def test_a_stalled_rank_is_reported_with_tensor_and_rank(name, seen):
    story, told = OTHERS[name], seen[name]
    assert told["ranks"] == [{"sum": [story["size"]] * 2}] * story["size"], told
    lines = [line for line in told["said"].splitlines() if "lonely tensor" in line]
    assert lines, f"no stall report in: {told['said']!r}"
    assert any(f"rank {story['victim']}" in line.lower() for line in lines), lines


def test_stall_reports_can_be_switched_off(seen):
    told = seen["quiet"]
    assert told["ranks"] == [{"sum": [2, 2]}] * 2 and "lonely" not in told["said"]


@pytest.mark.parametrize("name", ["too late 2", "too late 3"])
def test_a_stall_ends_the_job_when_asked_to(name, seen):
    story, told = OTHERS[name], seen[name]
    for rank, saw in enumerate(told["ranks"]):
        assert saw is not None and "HorovodInternalError" in saw["kinds"], (saw, told["said"])
        assert saw["after"] == [story["size"]] * 2
        if rank != story["victim"]:
            assert "lonely tensor" in saw["text"] and f"rank {story['victim']}" in saw["text"].lower(), saw["text"]
            assert 1.5 < saw["took"] < 3.5, saw["took"]


@pytest.mark.parametrize("name", ["never 1", "never 2"])
def test_a_rank_that_never_comes_is_named(name, seen):
    missing = OTHERS[name]["size"] - 1
    for saw in seen[name]["ranks"]:
        assert saw is not None and saw["took"] < limit(4), (saw, seen[name]["said"])
        assert "RankLost" in saw["kinds"] and f"rank {missing}" in saw["text"], saw["text"]


def test_ranks_may_come_to_init_at_different_times(seen):
    assert seen["init"]["ranks"] == [{"sum": [3.0]}] * 3, seen["init"]


ENDS = ["end 1", "end 2", "handles", "handles 0", "handles 1", "unread 0", "unread 1", "early"]


@pytest.mark.parametrize("name", ENDS)
def test_the_end_of_a_process_is_quiet(name, seen):
    told = seen[name]
    assert set(told["codes"]) == {0} and None not in told["ranks"], told  # "hung": it has waited out its patience
    assert not told["said"], told["said"]


@pytest.mark.parametrize("name", ["unread 0", "unread 1"])
def test_what_was_sent_arrives_though_the_sender_has_ended(name, seen):
    assert seen[name]["ranks"] == [{"sum": 4950.0}] * OTHERS[name]["size"], seen[name]


def test_what_a_rank_asked_for_and_left_is_refused(seen):
    saw = seen["early"]["ranks"][0]
    assert "RankLost" in saw["kinds"] and "rank 1 has shut down" in saw["text"], saw


@pytest.mark.parametrize("name", ["alone", "one rank"])
def test_a_world_of_one(name, seen):
    assert seen[name]["ranks"] == [{"world": [0, 1, 0, 1], "sum": [1.0]}], seen[name]


def test_children_of_a_rank_do_not_disturb_the_job(seen):
    assert seen["forks"]["ranks"] == [{"total": [2.0] * 6}] * 2, seen["forks"]


def test_the_stop_button_works_while_a_rank_waits(seen):
    assert seen["interrupted"]["ranks"][0]["took"] < limit(1), seen["interrupted"]


def test_what_is_in_flight_at_shutdown_ends_in_an_error(seen):
    for saw in seen["in flight"]["ranks"]:
        assert "HorovodInternalError" in saw["kinds"] and saw["after"] == 2.0, seen["in flight"]


def test_a_survivor_rests(seen):
    saw = seen["rest"]["ranks"][0]
    assert saw["used"] < 0.05 and "RankLost" in saw["kinds"], saw


def test_a_rank_that_stands_still_for_a_second_is_not_lost(seen):
    assert seen["stopped"]["ranks"] == [{"total": [2.0] * 3}] * 2, seen["stopped"]


def ends_without_shutdown(naps, late):
    import time

    import torch

    import helpers.hvd.torch as hvd

    hvd.init()
    total = hvd.allreduce(torch.ones(1), op=hvd.Sum).item()
    time.sleep(late[hvd.rank()])
    hvd.allreduce_async(torch.ones(1), name="forgotten")
    time.sleep(naps[hvd.rank()])
    return total


@pytest.mark.parametrize("late", [(0, 0, 0), (0, 0.3, 0), (0.3, 0, 0.1)])
@pytest.mark.parametrize("naps", [(0, 0, 0), (0, 0.3, 0.1), (0.3, 0, 0)])
def test_launched_ranks_need_not_shut_down(naps, late, capfd):
    assert helpers.launch(ends_without_shutdown, 3, naps, late, threads=1, timeout=120) == [3.0] * 3
    assert not "".join(capfd.readouterr()).strip()


def test_a_script_that_uses_torch_distributed_too(tmp_path):
    story = {"module": "hvd_stories", "work": "beside_a_default_group", "size": 2, "file": str(tmp_path / "meet")}
    ((told,),) = helpers.launch(hvd_lost.mother, 1, [story], threads=1, timeout=30)
    assert told["ranks"] == [{"total": [2.0] * 11}] * 2, told


SCRIPT = textwrap.dedent(
    """
    import json, os, sys, torch
    import helpers.hvd.torch as hvd
    hvd.init()
    total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum).item()
    answer = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size(), total]
    open(os.path.join(sys.argv[1], str(hvd.rank())), "w").write(json.dumps(answer))
    """
)
STARTERS = {
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"],
    "mpirun": ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable],
}


@pytest.mark.parametrize("starter", STARTERS)
def test_started_by(starter, tmp_path):
    if starter == "mpirun" and shutil.which("mpirun") is None:
        pytest.skip("Open MPI's mpirun is not installed (Debian: openmpi-bin)")
    script, answers = tmp_path / "script.py", tmp_path / "answers"
    script.write_text(SCRIPT)
    answers.mkdir()
    hidden = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    env.update(PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1", TMPDIR=str(tmp_path))
    done = subprocess.run(
        [*STARTERS[starter], str(script), str(answers)], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "rror" not in done.stderr, done.stderr
    read = [json.loads((answers / str(rank)).read_text()) for rank in range(2)]
    assert read == [[rank, 2, rank, 2, 0, 1, 3.0] for rank in range(2)]
    assert not [path.name for path in tmp_path.rglob("helpers-hvd*/*")], "a meeting file was left behind"
