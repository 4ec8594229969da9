"""A policy that wants something else all the time: no job stays where it is for long."""

from random import Random

from rota.model.allocation import of_parts, on_node
from rota.model.plan import Plan
from rota.model.reason import Reason
from rota.model.view import View
from rota.policy.base import Policy
from rota.policy.information import NONE

EVERY_S = 2.5
STAYS = 0.5  # of the jobs at each decision


class Restless(Policy):
    """Gives each job other GPUs, fewer, more or none, by the dice of the moment."""

    name = "restless"
    information = NONE
    resizes = True

    def decide(self, view: View) -> Plan:
        """Draw anew who has which GPUs."""
        dice, what_if = Random(view.now_s), view.what_if()
        rows = sorted(view.active)
        dice.shuffle(rows)
        moved = [row for row in rows if dice.random() > STAYS]
        before = {row: what_if.target(row) for row in moved}
        for row in moved:
            if before[row] is not None:
                what_if.release(row, Reason.WAIT_RESOURCES)
        for row in moved:
            size = dice.choice(view.sizes(row))
            home = view.home[row]
            if home is not None and not view.movable[row]:
                places = [home] if what_if.free.fits(home) else []
            else:
                nodes = (
                    [home.nodes()[0]]
                    if view.stays_on_node(row) and home
                    else range(len(what_if.free.masks))
                )
                places = [
                    place
                    for node in nodes
                    for place in _places(node, what_if.free.masks[node], size)
                ]
                if not view.one_node_gangs(row) and home is None:
                    places += _on_several(what_if.free.masks, size, before[row], dice)
            if places and dice.random() < 0.8:
                what_if.give(row, dice.choice(places))
            else:
                what_if.wait(row, Reason.WAIT_RESOURCES)
        return what_if.plan(wake_at_s=view.now_s + EVERY_S)


class Faltering(Restless):
    """Fails at one decision in three."""

    name = "faltering"

    def decide(self, view: View) -> Plan:
        """Draw anew who has which GPUs, or raise."""
        if Random(f"{view.now_s} {view.decision_seq}").random() < 1 / 3:
            raise RuntimeError("it falters")
        return super().decide(view)


def _places(node, mask, size):
    """Some ways to have so many of a node's free GPUs."""
    free = [gpu for gpu in range(mask.bit_length()) if mask >> gpu & 1]
    starts = range(len(free) - size + 1)
    return [on_node(node, sum(1 << gpu for gpu in free[start : start + size])) for start in starts]


def _on_several(masks, size, before, dice):
    """One way to have GPUs on several nodes; what trains already keeps its first node."""
    first = list(before.nodes()[:1]) if before is not None else []
    others = [node for node in range(len(masks)) if node not in first]
    parts, left = {}, size
    for node in first + dice.sample(others, len(others)):
        free = [gpu for gpu in range(masks[node].bit_length()) if masks[node] >> gpu & 1]
        taken = free[: min(left, dice.choice([1, 2]))]
        if taken:
            parts[node] = sum(1 << gpu for gpu in taken)
            left -= len(taken)
    return [of_parts(sorted(parts.items()))] if left == 0 and len(parts) > 1 else []
