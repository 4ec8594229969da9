import socket

import msgspec
import pytest

from rota.errors import AgentError
from rota.live.agent import launching
from rota.live.agent.devices import Devices
from rota.live.agent.launching import (
    free_port,
    gang_environments,
    rank_requests,
    visible_gpus,
)
from rota.live.agent.record import VERSION, Record
from rota.live.wire.places import place_of

RECORD = Record(
    version=VERSION,
    job_id="7",
    attempt=1,
    program={"run": "true", "workdir": "/", "env": {}, "processes": "gpu"},
    gpus=[1, 2],
    slots=2,
    members=[0, 1],
    max_world=1,
    movable=True,
    visible=None,
    suspension="process",
)


def test_ranks_are_told_theirs_by_rota_and_by_the_job_whatever_the_agent_was_started_by(
    tmp_path, monkeypatch
):
    for name in ("SLURM_PROCID", "PMIX_RANK", "GROUP_RANK", "RANK", "NODE_RANK"):
        monkeypatch.setenv(name, "0")
    folder = tmp_path / "nodes" / "n" / "jobs" / "7" / "1"
    record = msgspec.structs.replace(RECORD, program=RECORD.program | {"env": {"NODE_RANK": "5"}})
    ranks = rank_requests(record, folder, Devices("cpu", 3, (4, 5, 6)), "/socket", [0, 1], [1, 2])
    assert [rank["env"]["RANK"] for rank in ranks] == ["0", "1"]
    for rank in ranks:
        assert not rank["env"].keys() & {"SLURM_PROCID", "PMIX_RANK", "GROUP_RANK"}
        assert rank["env"]["NODE_RANK"] == "5"


@pytest.mark.parametrize("there", ["nothing", "a folder", "a link to one"])
def test_a_job_has_a_folder_for_checkpoints_whatever_was_there(tmp_path, there):
    checkpoints = tmp_path / "checkpoints" / "7"
    if there == "a folder":
        checkpoints.mkdir(parents=True)
    elif there == "a link to one":
        checkpoints.parent.mkdir()
        (tmp_path / "elsewhere").mkdir()
        checkpoints.symlink_to(tmp_path / "elsewhere")
    folder = tmp_path / "nodes" / "n" / "jobs" / "7" / "1"
    (rank,) = rank_requests(RECORD, folder, Devices("cpu", 3, (4, 5, 6)), "/socket", [0], [1])
    assert rank["env"]["ROTA_CHECKPOINT_DIR"] == str(checkpoints)
    assert checkpoints.is_dir()


@pytest.mark.parametrize("there", ["a file", "a link to a file", "a link to nothing"])
def test_what_is_no_folder_for_checkpoints_is_named_with_the_fix(tmp_path, there):
    checkpoints = tmp_path / "checkpoints" / "7"
    checkpoints.parent.mkdir()
    (tmp_path / "file").touch()
    if there == "a file":
        checkpoints.touch()
    else:
        checkpoints.symlink_to(tmp_path / ("file" if there == "a link to a file" else "nothing"))
    folder = tmp_path / "nodes" / "n" / "jobs" / "7" / "1"
    with pytest.raises(AgentError) as refusal:
        rank_requests(RECORD, folder, Devices("cpu", 3, (4, 5, 6)), "/socket", [0], [1])
    said = str(refusal.value)
    assert str(checkpoints) in said
    assert ("it is a link to" if "link" in there else "it is no folder") in said
    assert "move what is there away" in said


def test_slots_are_bound_to_their_cores_one_rank_each(tmp_path):
    devices = Devices("cpu", 3, (4, 5, 6))
    (tmp_path / "7" / "1").mkdir(parents=True)
    folder = tmp_path / "7" / "1"
    ranks = rank_requests(RECORD, folder, devices, "/socket", [0, 1], [1, 2])
    assert [rank["cpus"] for rank in ranks] == [[5], [6]]
    assert [rank["title"] for rank in ranks] == [
        "rota job 7.1 rank 0: true",
        "rota job 7.1 rank 1: true",
    ]
    one = rank_requests(RECORD, folder, devices, "/socket", [0], [1, 2])
    assert [rank["cpus"] for rank in one] == [[5, 6]]


def test_a_job_that_can_move_sees_all_gpus_its_own_first():
    devices = Devices("cuda", 4, ids=("0", "1", "2", "3"))
    assert visible_gpus([2, 3], devices, everything=True) == [2, 3, 0, 1]
    assert visible_gpus([2, 3], devices, everything=False) == [2, 3]
    assert visible_gpus([0], Devices("cpu", 2, (0, 1)), everything=True) is None


def first_of_kernel():
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        return int(file.read().split()[0])


def test_ranks_meet_at_a_port_that_the_kernel_gives_to_nobody_else():
    assert launching.FIRST_PORT <= free_port() < first_of_kernel()


def test_a_port_that_is_listened_at_on_any_address_is_not_chosen(monkeypatch):
    with socket.create_server(("127.0.0.1", free_port())) as other:
        taken = other.getsockname()[1]
        monkeypatch.setattr(launching, "FIRST_PORT", taken)
        monkeypatch.setattr(launching.random, "sample", lambda ports, count: [taken])
        assert free_port() != taken


def test_where_the_kernel_gives_any_port_away_one_of_these_is_chosen(monkeypatch):
    monkeypatch.setattr(launching, "FIRST_PORT", first_of_kernel())
    assert free_port() >= first_of_kernel()


def test_ranks_of_a_gang_are_numbered_by_node_and_told_where_they_meet():
    nodes = [{"name": name, "address": f"10.0.0.{at}"} for at, name in enumerate("abc", 1)]
    places = [0, 1, place_of(2, 3), place_of(2, 0)]
    record = msgspec.structs.replace(RECORD, gpus=places, nodes=nodes, members=[0, 1, 2, 3])
    told = gang_environments(record, [0, 1, 2, 3], places, None)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "ROTA_NODE_RANK")
    assert [tuple(told[slot][name] for name in names) for slot in range(4)] == [
        ("0", "4", "0", "2", "0"),
        ("1", "4", "1", "2", "0"),
        ("2", "4", "0", "2", "1"),
        ("3", "4", "1", "2", "1"),
    ]
    shared = {
        (each["MASTER_ADDR"], each["MASTER_PORT"], each["ROTA_HOSTS"]) for each in told.values()
    }
    ((address, _, hosts),) = shared
    assert (address, hosts) == ("10.0.0.1", "10.0.0.1,10.0.0.3")


def test_newcomers_to_a_gang_are_numbered_after_its_members():
    nodes = [{"name": "a", "address": "10.0.0.1"}, {"name": "b", "address": "10.0.0.2"}]
    record = msgspec.structs.replace(RECORD, nodes=nodes)
    told = gang_environments(record, [5], [place_of(1, 0)], 40)
    assert (told[5]["RANK"], told[5]["WORLD_SIZE"], told[5]["ROTA_NODE_RANK"]) == ("2", "3", "1")
