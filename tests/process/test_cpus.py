"""Jobs that are held to their CPU cores on a real cluster, by what this machine lets it have."""

import json
import os
import time
from pathlib import Path

import pytest

from rota.live.agent.cpu_groups import kept

from .conftest import Cluster, LoneAgent, until

BURNERS = """
import json
import os
for _ in range({more}):
    if os.fork() == 0:
        break
while True:
    pass
"""
SLACK = 1.15
THROTTLED = 10  # periods
HALF = 0.6  # at least, of as much


@pytest.fixture(scope="module")
def quarters(tmp_path_factory):
    """Eight slots on this machine: a job has an eighth of its cores for each."""
    base = tmp_path_factory.mktemp("quarters")
    cluster = Cluster(base, gpus=8, options=("--cpus", "proportional"))
    try:
        yield cluster.up()
    finally:
        cluster.close()


@pytest.fixture
def mechanism(quarters, record_property):
    """What holds jobs here; a test's report tells it."""
    [node] = quarters.client.nodes()
    record_property("mechanism", node["cores_held_by"])
    return node["cores_held_by"]


def burn(cluster, burners, gpus=1):
    script = cluster.base / f"burn{burners}.py"
    script.write_text(BURNERS.format(more=burners - 1))
    job = cluster.submit(f"python {script}", gpus=gpus, processes="node")
    cluster.until_state(job, "RUNNING")
    until(lambda: len(cluster.of_job(job)) == burners, "all burn")
    return job


def group_of(cluster, job, attempt=1):
    [file] = cluster.folder.path.glob("nodes/*/cpu-groups.json")
    identity = Path(json.loads(file.read_text())["trees"][0]).name[len("rota-") :]
    return kept(file, identity).trees[0] / f"{job}.{attempt}"


def stat(group):
    words = (group / "cpu.stat").read_text().split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


def cpu_s(cluster, job):
    return sum(sum(each.cpu_times()[:2]) for each in cluster.of_job(job))


def threads(cluster, job):
    for process in cluster.of_job(job):
        for thread in process.threads():
            yield os.sched_getaffinity(thread.id)


@pytest.mark.parametrize(("burners", "gpus"), [(1, 1), (3, 1), (6, 2)])
def test_burners_have_the_share_of_their_job_and_no_more(quarters, mechanism, burners, gpus):
    """By CPU seconds: a period in which the kernel stopped the group has used its quota up."""
    job = burn(quarters, burners, gpus)
    share = gpus * len(os.sched_getaffinity(0)) / 8
    assert quarters.show(job)["cores"] == {"given": share, "held_by": mechanism}
    if not mechanism.startswith("cgroup"):
        whole = -int(-share // 1)
        assert all(len(each) == whole for each in threads(quarters, job))
        quarters.client.cancel(job)
        return
    group = group_of(quarters, job)
    before, used_s = stat(group), cpu_s(quarters, job)

    def since():
        now = stat(group)
        return {key: now[key] - before[key] for key in now}

    until(lambda: since()["nr_throttled"] >= THROTTLED, "its quota binds")
    throttled = since()["nr_throttled"]
    used_s = cpu_s(quarters, job) - used_s
    periods = since()["nr_periods"] + 1
    assert used_s <= SLACK * share * periods * 0.1 + 0.02
    assert used_s >= share * throttled * 0.1 / SLACK - 0.02
    quarters.client.cancel(job)
    quarters.ends(job, "CANCELLED")
    until(lambda: not group.exists(), "its group is gone")


def test_a_program_is_told_whole_cores_and_a_gang_shares_its_own(quarters, mechanism):
    job = quarters.submit("echo $ROTA_CPUS; until test -e told; do sleep 0.1; done", gpus=5)
    cores = 5 * len(os.sched_getaffinity(0)) / 8
    quarters.until_state(job, "RUNNING")
    if mechanism.startswith("cgroup"):
        file = group_of(quarters, job) / "cgroup.procs"
        workers = {quarters.pids(job, rank)["worker"] for rank in range(5)}
        until(lambda: workers <= set(map(int, file.read_text().split())), "all are in the group")
    (quarters.base / "told").touch()
    quarters.ends(job)
    assert "".join(quarters.client.logs(job, rank=0)) == f"{-int(-cores // 1)}\n"


def test_the_next_agent_sets_what_one_left_that_was_killed_between_two_writes(quarters, mechanism):
    if not mechanism.startswith("cgroup"):
        pytest.skip(f"jobs are held by {mechanism}")
    job = burn(quarters, 2)
    group = group_of(quarters, job)
    name = "cpu.max" if mechanism == "cgroup v2" else "cpu.cfs_quota_us"
    right = (group / name).read_text()
    quarters.kill(quarters.agent())
    (group / name).write_text("77000")  # as if it had not come to write the record's share
    stale = group.with_name("999.1")
    stale.mkdir(exist_ok=True)
    until(lambda: (group / name).read_text() == right, "the next agent has set the group")
    until(lambda: not stale.exists(), "a group of no attempt is gone")
    assert quarters.show(job)["state"] == "RUNNING"
    quarters.client.cancel(job)
    quarters.ends(job, "CANCELLED")


def test_a_machine_that_loses_a_core_shares_out_what_is_left(quarters, mechanism):
    """The agent watches its own affinity, as it is when a cpuset shrinks or a core goes."""
    every = sorted(os.sched_getaffinity(0))
    if len(every) < 2:
        pytest.skip("there is one core alone")
    job = burn(quarters, 2)
    agent = quarters.agent()
    agent.cpu_affinity(every[:1])
    until(lambda: quarters.client.nodes()[0]["cores"] == 1, "the node tells one core")
    until(lambda: quarters.show(job)["cores"]["given"] == 1 / 8, "the job has its part of that")
    agent.cpu_affinity(every)
    until(lambda: quarters.client.nodes()[0]["cores"] == len(every), "the node tells all cores")
    quarters.client.cancel(job)
    quarters.ends(job, "CANCELLED")


def test_a_job_that_forks_64_workers_leaves_others_what_they_had(quarters, mechanism):
    """By CPU seconds of the same span: both have the same cores, and what there is in halves."""
    many, one = burn(quarters, 64), burn(quarters, 1)
    assert quarters.show(many)["cores"] == quarters.show(one)["cores"]
    if mechanism.startswith("cgroup"):
        before = {job: cpu_s(quarters, job) for job in (many, one)}
        used = {}

        def is_enough():
            used.update({job: cpu_s(quarters, job) - before[job] for job in before})
            return sum(used.values()) > 1.5

        until(is_enough, "both burn")
        assert used[one] >= HALF * used[many]
    else:
        assert {len(each) for each in threads(quarters, many)} == {1}
    for job in (many, one):
        quarters.client.cancel(job)
        quarters.ends(job, "CANCELLED")


# The loader has as many workers as its part of the cores allows; each epoch tells the number.
LOADS = """
import sys, torch, rota.train
from pathlib import Path
here = Path(sys.argv[1])
model = torch.nn.Linear(1, 1)
with rota.train.session() as s:
    s.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    data = torch.utils.data.TensorDataset(torch.zeros(8, 1))
    loader = s.loader(data, batch_size=4, shards=1, num_workers="auto")
    for epoch in s.epochs(100_000):
        for batch in loader:
            for piece in batch:
                (here / "workers").write_text(str(loader.workers))
        if (here / "end").exists():
            break
"""


def test_a_session_that_comes_back_is_told_what_cores_it_has_by_now(tmp_path):
    """In hello to the next agent, and as it goes on after a suspension."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("there is one core alone")
    home, script = tmp_path / "home", tmp_path / "loads.py"
    script.write_text(LOADS)

    def has(workers):
        file = tmp_path / "workers"
        return lambda: file.exists() and file.read_text() == str(workers)

    run = f"python {script} {tmp_path}"
    with LoneAgent(home) as first:
        first.launch(run, [0], 1, env={"ROTA_CPUS": "1"})
        first.command("setcpus", millicores=1000)
        until(has(1), "a worker on a core")
        record = first.attempt.folder / "attempt.json"
        first.vanish()
        first.join()
    # As if it had been killed after it wrote the record, and before it told the session.
    told = json.loads(record.read_text())
    record.write_text(json.dumps(told | {"millicores": 2000}))
    with LoneAgent(home) as second:
        until(has(2), "the session has heard of two cores from the next agent")
        second.command("setcpus", millicores=1000)
        until(has(1), "a worker on a core again")
        second.command("suspend")
        second.command("resume", gpus=[0], millicores=2000)
        until(has(2), "it has heard of two cores as it went on")
        (tmp_path / "end").touch()
        second.await_(lambda message: message["type"] == "ended")


BY_PHASE = """
from rota.model.allocation import on_node
from rota.model.plan import Plan
from rota.policy.base import Policy

class ByPhase(Policy):
    name = "by-phase"

    def decide(self, view):
        changes = {row: on_node(0, 1) for row in view.active if view.target[row] is None}
        cores = {row: 2000 if view.phase(row) == "evaluate" else 500 for row in view.active}
        return Plan(changes, {}, {}, cpus=cores)
"""
VALIDATES = """
import sys, time, torch, rota.train
from pathlib import Path
here = Path(sys.argv[1])
model = torch.nn.Linear(1, 1)
with rota.train.session() as s:
    s.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for step in s.steps():
        if (here / "validate").exists():
            with s.evaluate():
                while (here / "validate").exists():
                    time.sleep(0.02)
        time.sleep(0.02)
        if (here / "end").exists():
            break
"""


def test_a_job_that_goes_over_to_validation_and_back_is_held_to_other_cores(tmp_path):
    """Under a policy of the test, installed for its controller: of one job, by its phase."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("there is one core alone")
    installed = tmp_path / "installed"
    info = installed / "by_phase-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: by-phase\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rota.policies]\nby-phase = by_phase:ByPhase\n")
    (installed / "by_phase.py").write_text(BY_PHASE)
    (tmp_path / "validates.py").write_text(VALIDATES)
    cluster = Cluster(tmp_path, "by-phase", gpus=1)
    others = cluster.environment.get("PYTHONPATH", "")
    cluster.environment["PYTHONPATH"] = f"{installed}{os.pathsep}{others}"
    try:
        cluster.up()
        mechanism = cluster.client.nodes()[0]["cores_held_by"]
        job = cluster.submit(f"python {tmp_path / 'validates.py'} {tmp_path}")

        def held():
            if not mechanism.startswith("cgroup"):
                return {1000 * len(each) for each in threads(cluster, job)}
            name = "cpu.max" if mechanism == "cgroup v2" else "cpu.cfs_quota_us"
            return {int((group_of(cluster, job) / name).read_text().split()[0]) // 100}

        few = {500 if mechanism.startswith("cgroup") else 1000}
        cluster.until_state(job, "RUNNING")
        until(lambda: held() == few, "it trains on half a core")
        (tmp_path / "validate").touch()
        until(lambda: held() == {2000}, "it validates on two")
        assert cluster.show(job)["state"] == "RUNNING"
        (tmp_path / "validate").unlink()
        until(lambda: held() == few, "it trains on half a core again")
        (tmp_path / "end").touch()
        cluster.ends(job)
    finally:
        cluster.close()


def test_a_group_that_is_removed_leaves_affinity_and_one_warning(quarters, mechanism):
    """Jobs of this cluster are held by affinity from then on."""
    if not mechanism.startswith("cgroup"):
        pytest.skip(f"jobs are held by {mechanism}")
    job = burn(quarters, 9)
    group = group_of(quarters, job)
    for process in quarters.of_job(job):
        (group.parent.parent / "cgroup.procs").write_text(str(process.pid))
    group.rmdir()
    until(lambda: quarters.client.nodes()[0]["cores_held_by"] == "affinity", "it is noticed")
    until(lambda: {len(each) for each in threads(quarters, job)} == {1}, "all are bound")
    said = [
        line for line in (quarters.base / "up.log").read_text().splitlines() if "affinity" in line
    ]
    assert len(said) == 1
    assert "jobs are held to their CPU cores by affinity now" in said[0]
    quarters.client.cancel(job)
    quarters.ends(job, "CANCELLED")


def core_ticks(cores):
    """Ticks in which these cores were idle, and all of theirs, since the machine started."""
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    ticks = [list(map(int, line[1:9])) for line in lines if line[0] in {f"cpu{n}" for n in cores}]
    return sum(each[3] for each in ticks), sum(map(sum, ticks))


@pytest.mark.parametrize(("burners", "gpus", "whole"), [(6, 4, 1), (3, 8, 2), (1, 8, 2)])
def test_by_affinity_burners_have_so_many_whole_cores_between_them(quarters, burners, gpus, whole):
    """By the last test: n cores for k processes, workers that were forked before included.

    They use no more, and what others leave of as many: those cores are not idle meanwhile.
    """
    if quarters.client.nodes()[0]["cores_held_by"] != "affinity":
        pytest.skip("jobs are held by groups")
    if len(os.sched_getaffinity(0)) != 2:
        pytest.skip("shares are those of two cores")
    job = burn(quarters, burners, gpus)
    began_s, used_s = time.monotonic(), cpu_s(quarters, job)
    until(lambda: {len(each) for each in threads(quarters, job)} == {whole}, "all are bound")
    [cores] = {frozenset(each) for each in threads(quarters, job)}
    before = core_ticks(cores)
    until(lambda: cpu_s(quarters, job) - used_s >= 1.0, "they burn")
    idle, all = (now - then for now, then in zip(core_ticks(cores), before, strict=True))
    busy = min(burners, whole)
    assert idle <= all * (1 - busy / whole / SLACK)
    used_s = cpu_s(quarters, job) - used_s
    assert used_s <= SLACK * busy * (time.monotonic() - began_s) + 0.02
    quarters.client.cancel(job)
    quarters.ends(job, "CANCELLED")
