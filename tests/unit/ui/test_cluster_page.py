"""What the page of the cluster says of nodes."""

import pytest

page = pytest.importorskip("rota.ui.pages.cluster")


@pytest.mark.parametrize(
    ("node", "state"),
    [
        ({}, "READY"),
        ({"closed": "cordoned"}, "CORDONED"),
        ({"closed": "draining"}, "DRAINING"),
        ({"closed": "drained"}, "DRAINED"),
        ({"closed": "drained", "connected": False}, "UNREACHABLE"),
        ({"alive": False, "connected": False}, "LOST"),
    ],
)
def test_a_node_is_in_one_state_and_drains_as_long_as_jobs_are_there(node, state):
    assert page.state_of({"alive": True, "connected": True, "closed": None} | node) == state
