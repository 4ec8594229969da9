"""Jobs that ask for more GPUs, cores or memory than there are."""

from types import SimpleNamespace

import pytest

from rota.errors import NeverFitsError
from rota.live.controller.job_api import Entry, JobApi
from rota.model.cluster import Node
from rota.model.events import NodeCpusChanged, joined
from rota.model.state.state import ClusterState
from rota.request.jobfile import parse_job

SMALL = Node("small", 4, "cpu", gpu_type="t4", millicores=6000, host_memory_gb=16.0)
LARGE = Node("large", 2, "cpu", gpu_type="a100", millicores=16_500, host_memory_gb=64.0)


def request(**resources):
    return parse_job({"run": "true", "resources": resources}, workdir="/")


def api(*nodes, most_nodes=0):
    state = ClusterState()
    for node in nodes:
        state.apply(joined(0.0, node))
    return JobApi(SimpleNamespace(state=state), None, None, None, lambda: most_nodes)


@pytest.mark.parametrize(
    ("resources", "what"),
    [
        ({"cpus": 17}, "resources.cpus is 17, and the largest node has 16.5; ask for 16 or fewer"),
        (
            {"cpus_per_gpu": "9..12", "gpus": 2},
            "resources.cpus_per_gpu is 9 at least, 18 cores for 2 GPUs, and the largest node has "
            "16.5; ask for 8 or fewer",
        ),
        (
            {"cpus_per_gpu": 2, "gpus": 4},
            "resources.cpus_per_gpu is 2 at least, 8 cores for 4 GPUs, and the largest node has 6; "
            "ask for 1 or fewer",
        ),
        ({"cpus_per_gpu": 7, "gpu_type": "t4"}, "the largest node has 6; ask for 6 or fewer"),
        ({"memory": "65GB"}, "resources.memory is 65 GB, and the largest node has 64.0 GB"),
        ({"memory": "20GB", "gpus": 3}, "resources.memory is 20 GB, and the largest node has 16.0"),
    ],
)
def test_a_job_that_no_node_can_hold_is_refused_with_the_largest_that_fits(resources, what):
    with pytest.raises(NeverFitsError, match=f"NEVER_FITS: .*{what}"):
        api(SMALL, LARGE).check(request(**resources))


def test_where_not_even_a_core_is_there_for_each_gpu_no_number_is_advised():
    with pytest.raises(NeverFitsError, match=r"has 3; leave it out, or ask for fewer GPUs"):
        api(SMALL._replace(millicores=3000)).check(request(cpus_per_gpu=1, gpus=4))


def test_a_job_that_some_node_can_hold_is_taken_with_its_bounds():
    wants = request(cpus_per_gpu="8..20", gpus=2, memory="64GB")
    api(SMALL, LARGE).check(wants)
    assert Entry(wants, "ann", None, "").spec("1", 0.0).cpus_per_gpu == (8, 20)


def test_a_node_that_has_not_told_what_it_has_could_hold_any_job():
    for nodes in ((), (SMALL, LARGE._replace(millicores=0, host_memory_gb=0.0))):
        api(*nodes).check(request(cpus_per_gpu=99))
        api(*nodes).check(request(cpus=99, memory="999GB"))


def test_cores_that_a_node_has_lost_can_not_be_asked_for():
    one = api(LARGE)
    one.check(request(cpus=16))
    one._state.decision_needed = False
    one._state.apply(NodeCpusChanged(1.0, "large", 4000))
    assert one._state.decision_needed
    assert [node.millicores for node in one._state.offered] == [4000]
    with pytest.raises(NeverFitsError, match="has 4; ask for 4 or fewer"):
        one.check(request(cpus=5))


def gang(gpus, processes="gpu"):
    run = {"run": "true", "processes": processes, "resources": {"gpus": gpus}}
    return parse_job(run, workdir="/")


REACHED = Node("one", 4, "cuda", reach="10.0.0.1")


def test_a_gang_is_taken_that_fits_on_the_nodes_that_can_be_asked_for():
    api(REACHED, most_nodes=8).check(gang(32))
    too_large = "resources.gpus is 33 and this cluster has 4, and 32 on 8 nodes; ask for 32 or"
    with pytest.raises(NeverFitsError, match=too_large):
        api(REACHED, most_nodes=8).check(gang(33))
    with pytest.raises(NeverFitsError, match="5 and this cluster has 4; ask for 4 or fewer"):
        api(REACHED).check(gang(5))


@pytest.mark.parametrize(
    ("node", "wants"),
    [
        (REACHED, gang(5, processes="node")),
        (REACHED._replace(reach=""), gang(5)),
    ],
    ids=["its processes are on one node", "no other node could call this one"],
)
def test_a_job_that_can_be_on_one_node_alone_is_refused_whatever_can_be_asked_for(node, wants):
    with pytest.raises(NeverFitsError, match="gang is on one node, and the largest node has 4"):
        api(node, most_nodes=8).check(wants)
