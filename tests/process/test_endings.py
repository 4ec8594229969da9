"""Jobs end, in whatever way they do, with one clear result and nothing left behind."""

import contextlib
import os
import time
from collections import Counter

import psutil
import pytest

from rota.errors import TransitionError

from .conftest import Cluster, until


def gone(pids):
    return not any(psutil.pid_exists(pid) and not _zombie(pid) for pid in pids)


def _zombie(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("run", "code", "message", "said"),
    [
        ("no-such-program --really", 127, "", "no-such-program"),
        ("python no_such_script.py", None, "", "no_such_script.py"),
        ("python -m no_such_module", 1, "", "no_such_module"),
        ("exit 3", 3, "", ""),
        ("python -c 'import os; os.kill(os.getpid(), 11)'", -11, "killed by SIGSEGV", ""),
        ("echo 'unclosed", None, "", "unexpected EOF"),
        ("python crash.py", 1, "", "RuntimeError: on purpose"),
        ("python exit.py", 7, "", ""),
        ("python stop.py", 1, "", "out of tea\nand its exit functions ran"),
        ("python segfault.py", -11, "killed by SIGSEGV", ""),
        ("kill -40 $$", -40, "killed by signal 40", ""),
    ],
)
def test_a_command_that_fails_is_failed_with_its_code(
    shared_cluster: Cluster, base, run, code, message, said
):
    (base / "crash.py").write_text("raise RuntimeError('on purpose')\n")
    (base / "exit.py").write_text("import sys\nsys.exit(7)\n")
    (base / "stop.py").write_text(
        "import atexit, sys\n"
        "atexit.register(print, 'and its exit functions ran')\n"
        "sys.exit('out of tea')\n"
    )
    (base / "segfault.py").write_text("import os\nos.kill(os.getpid(), 11)\n")
    job = shared_cluster.submit(run)
    show = shared_cluster.ends(job, "FAILED")
    if code is None:
        assert show["exit_code"] not in (0, None)
    elif code < 0 and show["exit_code"] > 0:  # a shell around it says it its own way
        assert show["exit_code"] == 128 - code
    else:
        assert (show["exit_code"], show["message"]) == (code, message)
    assert said in "".join(shared_cluster.client.logs(job))
    assert shared_cluster.of_job(job) == []


def test_a_missing_workdir_fails_the_job_and_says_so(shared_cluster, base):
    for run in ("true", "python x.py"):
        job = shared_cluster.submit(run, workdir=str(base / "nowhere"))
        shared_cluster.ends(job, "FAILED")
        assert "nowhere" in "".join(shared_cluster.client.logs(job))


def test_a_job_that_ignores_sigterm_is_killed_after_the_grace_period(shared_cluster, base):
    (base / "stubborn.py").write_text(
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open('ready', 'w').close()\n"
        "while True: time.sleep(0.1)\n"
    )
    job = shared_cluster.submit("python stubborn.py")
    other = shared_cluster.train("other", "--steps", 100000)
    until((base / "ready").exists, "it ignores SIGTERM")
    shared_cluster.client.cancel(job)
    shared_cluster.ends(job, "CANCELLED")
    assert shared_cluster.of_job(job) == []
    shared_cluster.until_step_advances("other")
    shared_cluster.client.cancel(other)
    shared_cluster.ends(other, "CANCELLED")


@pytest.mark.parametrize("ending", ["exit 0", "exit 5", "sleep 1000"])
def test_children_of_every_kind_are_gone_when_their_job_has_ended(shared_cluster, base, ending):
    (base / "daemon.py").write_text(
        "import os, time\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        "open('daemon', 'w').write(str(os.getpid()))\n"
        "while True: time.sleep(0.1)\n"
    )
    (base / "tree.sh").write_text(
        "sleep 1000 & echo $! > child\n"
        "setsid sleep 1001 & echo $! > session\n"
        "env -i /bin/bash -c 'setsid nohup sleep 1002 & echo $! > bare'\n"
        "python daemon.py\n"
        "while ! [ -s daemon ]; do sleep 0.01; done\n"
        f"touch ready; {ending}\n"
    )
    job = shared_cluster.submit("bash tree.sh")
    until((base / "ready").exists, "all are there")
    pids = [int((base / name).read_text()) for name in ("child", "session", "bare", "daemon")]
    if ending.startswith("sleep"):
        shared_cluster.client.cancel(job)
    state = {"exit 0": "SUCCEEDED", "exit 5": "FAILED"}.get(ending, "CANCELLED")
    shared_cluster.ends(job, state)
    assert gone(pids)


def test_a_gang_of_which_one_rank_fails_is_ended_as_a_whole(shared_cluster, base):
    (base / "gang.sh").write_text(
        "echo $$ > pid$RANK\n"
        "if [ $RANK = 1 ]; then while ! [ -s pid0 ]; do sleep 0.01; done; exit 9; fi\n"
        "while :; do sleep 0.1; done\n"
    )
    job = shared_cluster.submit("bash gang.sh", gpus=2)
    assert shared_cluster.ends(job, "FAILED")["exit_code"] == 9
    assert gone([int((base / "pid0").read_text())])
    assert all(slot is None for slot in shared_cluster.client.nodes()[0]["jobs"])


def test_a_job_over_its_time_limit_is_ended_and_says_so(shared_cluster, base):
    job = shared_cluster.submit("sleep 1000", time_limit="1s")
    show = shared_cluster.ends(job, "TIMEOUT")
    assert show["run_s"] >= 1.0
    assert shared_cluster.of_job(job) == []


def test_time_that_a_job_is_suspended_does_not_count_towards_its_limit(shared_cluster, base):
    """It is suspended before it has run for so long: with a longer limit where that fails."""
    cluster = shared_cluster
    clock = cluster.submit("sleep 1000")
    for limit_s in (2, 20, 200):
        job = cluster.submit("sleep 1000", time_limit=f"{limit_s}s")
        cluster.until_state(job, "RUNNING", "TIMEOUT")
        with contextlib.suppress(TransitionError):  # it is over
            cluster.client.suspend(job)
        if cluster.until_state(job, "SUSPENDED", "TIMEOUT")["state"] == "SUSPENDED":
            break
    now_s = cluster.show(clock)["run_s"]
    until(lambda: cluster.show(clock)["run_s"] > now_s + limit_s, "the limit has passed meanwhile")
    assert cluster.show(job)["state"] == "SUSPENDED"
    cluster.client.resume(job)
    assert cluster.ends(job, "TIMEOUT")["run_s"] >= limit_s
    cluster.client.cancel(clock)
    cluster.ends(clock, "CANCELLED")


def test_a_job_can_be_cancelled_wherever_it_stands(shared_cluster, base):
    cluster = shared_cluster
    running = cluster.train("running", "--steps", 100000)
    opaque = cluster.submit("sleep 1000")
    pending = cluster.submit("true")
    cluster.until_state(running, "RUNNING")
    cluster.until_state(opaque, "RUNNING")
    assert cluster.show(pending)["state"] == "PENDING"
    cluster.client.cancel(pending)
    assert cluster.ends(pending, "CANCELLED")["attempt"] == 0
    cluster.until_step_advances("running")
    for job in (running, opaque):
        cluster.client.suspend(job)
        cluster.until_state(job, "SUSPENDED")
    held = cluster.train("held", "--steps", 100000, gpus=2)
    cluster.client.suspend(held)
    for job in (running, opaque, held):
        cluster.client.cancel(job)
        cluster.client.cancel(job)
        cluster.ends(job, "CANCELLED")
        assert cluster.of_job(job) == []


def test_a_job_that_prints_megabytes_keeps_every_byte(shared_cluster, base):
    job = shared_cluster.submit("yes 0123456789abcde | head -c 8000000; echo; echo done")
    shared_cluster.ends(job)
    text = "".join(shared_cluster.client.logs(job))
    assert len(text) == 8_000_000 + len("\ndone\n")
    assert text.endswith("\ndone\n")


def test_hundreds_of_tiny_jobs_at_once_each_run_exactly_once_and_leak_nothing(make_cluster):
    cluster = make_cluster(gpus=4)
    agent = cluster.agent()
    first = [cluster.submit("true") for _ in range(5)]
    for job in first:
        cluster.ends(job)
    open_files = agent.num_fds(), psutil.Process(cluster.process.pid).num_fds()
    jobs = [cluster.submit(f"echo {i} >> {cluster.base}/ran", name=f"tiny{i}") for i in range(200)]
    going = ["PENDING", "STARTING", "RUNNING"]
    until(lambda: not cluster.client.jobs(states=going), "all ended", poll_s=0.5)
    shows = [job for job in cluster.client.jobs(everything=True) if job["id"] in jobs]
    assert Counter(show["state"] for show in shows) == {"SUCCEEDED": 200}
    assert {show["attempt"] for show in shows} == {1}
    ran = Counter((cluster.base / "ran").read_text().split())
    assert ran == Counter(str(i) for i in range(200))

    def settled():
        now = agent.num_fds(), psutil.Process(cluster.process.pid).num_fds()
        return all(new <= old + 3 for new, old in zip(now, open_files, strict=True))

    until(settled, f"no file descriptors leak (before: {open_files})")
    folder = cluster.socket_folder()
    socket = f"{cluster.client.nodes()[0]['name']}.sock"
    assert sorted(os.listdir(folder)) == ["owner.json", socket]


def test_an_idle_cluster_costs_next_to_no_cpu(shared_cluster, base):
    processes = [shared_cluster.agent(), psutil.Process(shared_cluster.process.pid)]

    def wakings():
        return sum(process.num_ctx_switches().voluntary for process in processes)

    job = shared_cluster.submit("sleep 3")
    shared_cluster.until_state(job, "RUNNING")
    shim = shared_cluster.pids(job)["shim"]
    before, began = wakings(), time.monotonic()
    until(lambda: not psutil.pid_exists(shim), "it is over", poll_s=0.2)
    a_second = (wakings() - before) / (time.monotonic() - began)
    assert a_second < 100  # with a job that says nothing
    shared_cluster.ends(job)


ESCAPEE = """
import os, sys
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
open(sys.argv[1], "w").write(f"{os.getpid()}\\n")
os.closerange(0, 64)
os.chdir("/")
os.execve("/bin/sleep", ["sleep", "1000"], {})
"""


@pytest.mark.parametrize("victims", ["shim", "shim, zygote and agent"])
def test_a_daemon_without_an_environment_is_dead_before_its_job_starts_anew(
    shared_cluster, base, victims
):
    """It has left its session, its folder and its files; its shim does not live to kill it."""
    cluster = shared_cluster
    (base / "escapee.py").write_text(ESCAPEE)
    (base / "job.sh").write_text(
        "if [ $ROTA_ATTEMPT = 2 ]; then\n"
        "  cp /proc/$(cat daemon)/status second || echo gone > second\n"
        "  exit 0\n"
        "fi\n"
        "python escapee.py daemon; sleep 1000\n"
    )
    job = cluster.submit("bash job.sh")
    until(lambda: (base / "daemon").exists() and (base / "daemon").read_text(), "there is a daemon")
    daemon = psutil.Process(int((base / "daemon").read_text()))
    until(lambda: daemon.name() == "sleep", "it is on its own")
    shim = cluster.pids(job)["shim"]
    old = cluster.agent()
    cluster.kill(shim, *([*cluster.zygotes(), old] if "agent" in victims else []))
    assert cluster.ends(job)["attempt"] == 2
    assert gone([daemon.pid])
    second = (base / "second").read_text()
    assert second == "gone\n" or "State:\tZ" in second
