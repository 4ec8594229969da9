"""Probes are told by name."""

from rota.explain.probes import tell
from rota.model.probe import Probe
from rota.testing.builders import job
from support.driven import DrivenCluster

PACK = [90.0, "pack", 1.0, 1.2, True]
MOVE = [120.0, "move", 1.0, None, True]


def test_partners_and_places_are_told_by_name_as_far_as_they_are_known():
    state = DrivenCluster(job("a"), job("b"), cluster="2x4").state
    names = [node.name for node in state.nodes]
    pack, move, old = tell(
        state,
        [
            Probe(*PACK, (1,), ((0, 0b100),)),
            Probe(*MOVE, (), ((1, 0),), ((0, 0),)),
            Probe(*MOVE),
        ],
    )
    assert (pack["with"], pack["on"], "from" in pack) == (["b"], f"{names[0]}:2", False)
    assert (move["on"], move["from"], "with" in move) == (names[1], names[0], False)
    assert set(old) == {"at_s", "what", "predicted", "measured", "kept"}
