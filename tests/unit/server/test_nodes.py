"""Nodes as the API lists them."""

from types import SimpleNamespace

from rota.model.state.state import ClusterState
from rota.server.jobs import nodes


def test_nodes_of_the_controllers_machine_come_first_and_the_others_by_their_names():
    def node(name, address, alive=True):
        return {"name": name, "address": address, "alive": alive, "num_gpus": 1, "lost_s": 1.0}

    told = [node("gpu10", "10.0.0.10"), node("gpu2", "10.0.0.2"), node("zeus", None)]
    told.append(node("gpu1", "10.0.0.1", alive=False))
    record = SimpleNamespace(nodes=lambda: told)
    controller = SimpleNamespace(state=ClusterState(), record=record, now_s=lambda: 1.0)
    listed = nodes(controller, everything=False)
    assert [each["name"] for each in listed] == ["zeus", "gpu2", "gpu10", "gpu1"]
