"""Gangs over several machines: launched, suspended, resized, and lost as on one.

The policy does as the tests say: which job has which GPUs of which nodes.
"""

import contextlib
from collections import defaultdict
from collections.abc import Iterator

import psutil
import pytest
import torch
from tests.process.conftest import SCRIPTS, until
from tests.process.states import differences, outcome

from rota.experiment.runs import hosts
from rota.model.job import JobState

from .placing import Placing

LEASE, GPUS = "30", "5"
DDP = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
print("rank", rank, "of", world, "on", os.environ["ROTA_NODE"], flush=True)
while True:
    over = torch.tensor([float(os.path.exists("gate"))])
    dist.all_reduce(over, dist.ReduceOp.MIN)
    if over.item():
        break
    time.sleep(0.01)
print("over", flush=True)
"""
WRITES = """
import os, pathlib, time, torch.distributed as dist
dist.init_process_group("gloo")
print("rank", dist.get_rank(), "has begun", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
kept = pathlib.Path(os.environ["ROTA_CHECKPOINT_DIR"])
kept.mkdir(parents=True, exist_ok=True)
(kept / f"weights{dist.get_rank()}").write_bytes(bytes(1 << 20))
dist.barrier()
"""


class Training:
    """A training whose state is known to the bit; it goes on until it is told its last step."""

    def __init__(self, lab: Placing, name: str, piece_s: float = 0.02, **gpus: list[int]) -> None:
        self.lab, self.out = lab, lab.base / name
        self.out.mkdir()
        words = ["--out", self.out, "--steps", 1_000_000, "--cores", 1, "--piece-s", piece_s]
        run = " ".join(map(str, ["python", SCRIPTS / "elastic.py", *words]))
        self.id = lab.client.submit(
            {"run": run, "workdir": str(lab.base), "resources": {"gpus": "1..4"}}
        )["id"]
        if gpus:
            self.has(**gpus)

    @property
    def now(self) -> dict:
        return self.lab.client.job(self.id)

    @property
    def step(self) -> int:
        return (self.now["progress"] or {}).get("step", 0)

    def has(self, **gpus: list[int]) -> None:
        """Have it on these GPUs, and see that it trains there."""
        self.lab.has(self.id, **gpus)
        before = self.step
        until(lambda: self.step > before + 2, f"it trains: {self.now}")

    def ends(self, last: int) -> dict:
        """What it has ended with after that step."""
        draft = self.out / "finish.new"
        draft.write_text(str(last))
        draft.rename(self.out / "finish")
        self.lab.is_in(self.id, "SUCCEEDED")
        return outcome(torch.load(self.out / "end.pt", weights_only=False))


@pytest.fixture
def trio(machines) -> Iterator[Placing]:
    """The machines without jobs: what a test that fails leaves has GPUs that the next one needs."""
    yield machines
    for job in machines.client.jobs():
        if not JobState[job["state"]].is_final:
            machines.client.cancel(job["id"])
            machines.is_in(job["id"], "CANCELLED")


@pytest.fixture(scope="module")
def machines(tmp_path_factory) -> Iterator[Placing]:
    """Three machines that have joined, of five GPUs each, and one of the controller's own."""
    if reason := hosts.why_none(*hosts.FOR_FAULTS):
        pytest.skip(reason)
    base = tmp_path_factory.mktemp("trio")
    (base / "head").mkdir()
    with hosts.lan() as lan:
        lab = Placing(lan, base)
        try:
            lab.up("--policy", "placed", "--lease", LEASE)
            lab.machines = {name: lab.join(name, gpus=int(GPUS)) for name in ("a", "b", "c")}
            yield lab
        finally:
            lab.close()


def test_a_plain_gang_trains_on_all_and_is_stopped_meanwhile(trio):
    (trio.base / "ddp.py").write_text(DDP)
    fields = {"run": "python ddp.py", "workdir": str(trio.base), "resources": {"gpus": 6}}
    job = trio.client.submit(fields)["id"]
    trio.has(job, a=[0, 1], b=[0, 1], c=[0, 1])
    until(lambda: "of 6" in trio.logs(job, rank=5), "all have met")
    for node, ranks in {"a": (0, 1), "b": (2, 3), "c": (4, 5)}.items():
        for rank in ranks:
            assert f"rank {rank} of 6 on {node}\n" in trio.logs(job, rank=rank)
    trio.place(job)
    trio.is_in(job, "SUSPENDED")
    for machine in trio.machines.values():
        assert sum(each.status() == psutil.STATUS_STOPPED for each in workers(machine)) == 2
    trio.has(job, a=[0, 1], b=[0, 1], c=[0, 1])
    (trio.base / "gate").touch()
    trio.is_in(job, "SUCCEEDED")
    assert trio.client.job(job)["attempt"] == 1


def test_a_training_is_suspended_moved_shrunk_and_grown_and_ends_with_the_same_bits(trio):
    job = Training(trio, "disturbed", a=[0], b=[0])
    trio.place(job.id)
    trio.is_in(job.id, "SUSPENDED")
    job.has(a=[0], b=[0])
    job.has(a=[0], c=[0])  # it moves off b
    job.has(a=[0])
    job.has(a=[0, 1], b=[0, 1])
    last = job.step + 100
    disturbed = job.ends(last)
    assert job.now["attempt"] == 1
    alone = Training(trio, "alone", c=[1])
    assert not differences(disturbed, alone.ends(last))
    assert alone.step < last + 100


def workers(machine) -> list[psutil.Process]:
    """The processes of jobs there."""
    found = []
    for zygote in machine.host.processes("rota.train.zygote"):
        for shim in zygote.children():
            with contextlib.suppress(psutil.Error):  # it has just ended
                found += shim.children()
    return found


def test_it_goes_on_without_a_rank_that_is_killed_on_another_machine(trio):
    job = Training(trio, "killed", a=[0], b=[0])
    (rank,) = workers(trio.machines["b"])
    trio.place(job.id, a=[0])  # else the policy would want the GPU back
    rank.kill()
    job.has(a=[0])
    job.ends(job.step + 20)
    assert (job.now["attempt"], job.now["lost_ranks"]) == (1, 1)


def test_nobody_notices_that_agents_and_the_controller_are_killed(trio):
    job = Training(trio, "unnoticed", a=[0], b=[0])

    def again(name):
        machine = trio.machines[name]
        machine.end()
        machine.run("agent", "--gpus", GPUS)
        trio.until_connected(name, machine)

    for name in ("b", "a"):
        again(name)
        job.has(a=[0], b=[0])
    trio.head.end()
    trio.up("--policy", "placed", "--lease", LEASE)
    trio.place(job.id)
    trio.is_in(job.id, "SUSPENDED")
    job.has(a=[0], b=[0])
    job.has(a=[0])
    again("a")  # it has left b, which can tell nothing of it
    job.has(a=[0])
    job.ends(job.step + 20)
    assert (job.now["attempt"], job.now["lost_ranks"]) == (1, 0)


def test_a_cable_that_is_cut_for_less_than_the_lease_harms_nobody(trio):
    job = Training(trio, "cut", a=[0], b=[0])
    with trio.machines["b"].host.cut():
        until(lambda: trio.node("b")["unreachable"], "it is not heard")
    until(lambda: not trio.node("b")["unreachable"], "it is heard again")
    job.has(a=[0], b=[0])
    job.ends(job.step + 20)
    assert job.now["attempt"] == 1


def attempts_that_run(machines) -> dict[str, set[int]]:
    """By job, the attempts that have processes which are not stopped, on any of these machines."""
    seen = []
    for machine in machines:
        for process in workers(machine):
            with contextlib.suppress(psutil.Error, OSError):
                told = process.environ()
                if "ROTA_JOB_ID" in told:
                    seen.append((process, told["ROTA_JOB_ID"], int(told["ROTA_ATTEMPT"])))
    found = defaultdict(set)
    for process, job_id, attempt in reversed(seen):  # what is seen later may have followed
        with contextlib.suppress(psutil.Error):
            if process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
                found[job_id].add(attempt)
    return found


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "faults",
    [{"b": "mute"}, {"a": "deaf"}, {"b": "cut", "c": "cut"}],
    ids=lambda faults: " and ".join(f"{name} {fault}" for name, fault in faults.items()),
)
def test_gangs_start_anew_once_whatever_they_do_when_machines_fail(trio, faults):
    """They run, are suspended, moved, grown and launched; the agent of each is on a."""
    names = ["runs", "is-suspended", "is-moved", "grows", "is-launched"]
    prefix = "-".join(f"{name}{fault}" for name, fault in faults.items())
    jobs = {name: Training(trio, f"{prefix}-{name}", piece_s=0.2) for name in names}
    ids = [job.id for job in jobs.values()]
    both = [{"a": [at], "b": [at]} for at in range(len(ids))]
    then = [both[0] | {"c": [0]}, *both[1:3], {"a": [3]}, {}]
    trio.place_all(dict(zip(ids, then, strict=True)))
    for job in list(jobs.values())[:-1]:
        until(lambda job=job: job.step > 0, f"it trains: {job.now}")
    with contextlib.ExitStack() as stack:
        for name, fault in faults.items():
            stack.enter_context(getattr(trio.machines[name].host, fault)())
        then[1:] = {}, {"a": [2], "c": [2]}, *both[3:]
        trio.place_all(dict(zip(ids, then, strict=True)))
        trio.is_in(jobs["is-suspended"].id, "SUSPENDING")
        trio.is_in(jobs["is-launched"].id, "STARTING")
        before = {job: job.now["attempt"] for job in jobs.values()}
        until(lambda: all(map(is_lost, before, before.values())), "all are lost")
        rest = [name for name in trio.machines if name not in faults]
        then = [{name: [at] for name in rest} for at in range(len(ids))]
        trio.place_all(dict(zip(ids, then, strict=True)))

        def have_started() -> bool:
            running = attempts_that_run(trio.machines.values())
            assert all(len(attempts) == 1 for attempts in running.values()), running
            return all(runs_in(job, attempt + 1) for job, attempt in before.items())

        until(have_started, "all start anew")
        for name in faults:
            left = [each.status() for each in workers(trio.machines[name])]
            assert set(left) == {psutil.STATUS_STOPPED}
    story = [each["line"] for each in jobs["is-suspended"].now["story"]]
    assert "suspended" not in story  # its GPUs were not known to be free
    for name in faults:
        until(lambda name=name: not workers(trio.machines[name]), "what was stopped is killed")
        trio.until_connected(name, trio.machines[name])
    for job, attempt in before.items():
        job.ends(job.step + 1)
        assert job.now["attempt"] == attempt + 1


def is_lost(job: Training, attempt: int) -> bool:
    now = job.now
    return now["attempt"] > attempt or now["state"] == "PENDING"


def runs_in(job: Training, attempt: int) -> bool:
    now = job.now
    return (now["state"], now["attempt"]) == ("RUNNING", attempt)


def test_a_fifth_of_all_packets_may_be_lost_while_a_gang_changes(trio):
    with trio.machines["b"].host.lossy(20):
        job = Training(trio, "lossy", a=[0], b=[0])
        for _ in range(3):
            trio.place(job.id)
            trio.is_in(job.id, "SUSPENDED")
            job.has(a=[0], b=[0])
        job.has(a=[0])
        job.has(a=[0], b=[1])
        job.has(a=[0], c=[0])
        job.has(a=[0], b=[0])
        job.ends(job.step + 5)
    assert (job.now["attempt"], job.now["lost_ranks"]) == (1, 0)


def test_a_full_disk_of_one_machine_ends_the_gang_as_a_whole_or_starts_none(trio):
    machine = trio.machine("small")
    machine.host.run("mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(machine.base))
    machine.run(*trio.line(), "--gpus", "1")
    trio.until_connected("small", machine)
    (trio.base / "writes.py").write_text(WRITES)
    fields = {"run": "python writes.py", "workdir": str(trio.base), "resources": {"gpus": 2}}
    job = trio.client.submit(fields)["id"]
    trio.has(job, a=[0], small=[0])
    until(lambda: "has begun" in trio.logs(job, rank=1), "it runs")
    machine.host.run("sh", "-c", f"cat /dev/zero > {machine.base}/filler || true")
    (trio.base / "go").touch()
    until(lambda: "No space left on device" in trio.logs(job, rank=1), "it can't write")
    machine.host.run("rm", f"{machine.base}/filler")  # how it ended has no room before
    trio.is_in(job, "FAILED")
    assert trio.client.job(job)["attempt"] == 1
    until(lambda: not workers(trio.machines["a"]) + workers(machine), "the whole gang has ended")
    machine.host.run("sh", "-c", f"cat /dev/zero > {machine.base}/filler || true")
    job = trio.client.submit(fields)["id"]
    trio.place(job, a=[0], small=[0])
    line = until(lambda: failure(trio, job), "the launch fails")
    assert "node small" in line and "No space left on device" in line
    assert not workers(trio.machines["a"])
    machine.host.run("rm", f"{machine.base}/filler")
    trio.is_in(job, "SUCCEEDED")


def failure(lab: Placing, job: str) -> str:
    """The line of a job's story that tells of a failure; "" if there is none."""
    return next((e["line"] for e in lab.client.job(job)["story"] if "failed" in e["line"]), "")


def test_a_rank_that_fails_on_another_machine_tells_why(trio):
    setup = '[ "$ROTA_NODE" != b ] || { echo no such package; exit 3; }'
    fields = {"run": "true", "setup": setup, "workdir": str(trio.base), "resources": {"gpus": 2}}
    job = trio.client.submit(fields)["id"]
    trio.place(job, a=[0], b=[0])
    trio.is_in(job, "FAILED")
    message = trio.client.job(job)["message"]
    assert "setup failed with exit code 3, and printed last: no such package" in message


def test_a_launch_on_machines_that_do_not_reach_each_other_fails_and_says_which(trio):
    with trio.machines["b"].host.apart_from(trio.machines["a"].host):
        fields = {"run": "true", "workdir": str(trio.base), "resources": {"gpus": 2}}
        job = trio.client.submit(fields)["id"]
        trio.place(job, a=[0], b=[0])

        line = until(lambda: failure(trio, job), "the launch fails")
        assert "node a" in line and "node b at" in line
        assert all(trio.node(name)["connected"] for name in ("a", "b"))
        assert not workers(trio.machines["a"]) and not workers(trio.machines["b"])
    trio.is_in(job, "SUCCEEDED")
