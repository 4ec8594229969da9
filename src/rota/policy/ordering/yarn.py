"""YARN's capacity scheduler with consolidation blocks, the baseline of Tiresias (NSDI 2019)."""

from rota.model.allocation import Allocation
from rota.model.cluster import FreeGpus
from rota.model.plan import Plan
from rota.model.reason import Reason
from rota.model.view import View, WhatIf
from rota.policy.base import Policy, Setting, one_of
from rota.policy.information import NONE
from rota.policy.ordering.waiting import Waiting
from rota.policy.placement.nodesets import lowest_gpus
from rota.policy.stages.selection import finish, has_a_say, place, walk


class YarnCapacity(Policy):
    """First in, first out, without preemption, on as few nodes as a gang can do with.

    A gang no larger than a node waits for room on one; a larger one waits for nodes that are
    wholly idle and, for the rest, for one node with room. The head of the line blocks it; with
    quotas each queue is a line of its own. With ``backfill`` those that can be placed pass.
    """

    name = "yarn-cs"
    information = NONE
    composes = True
    preemptive = False
    SETTINGS = {
        "backfill": Setting(
            one_of("yes", "no"), "no", "Whether jobs that can be placed pass the head of the line."
        )
    }

    def __init__(self, backfill: str = "no") -> None:
        self.backfill = backfill
        self._waiting = Waiting(by_size=False)

    def decide(self, view: View) -> Plan:
        """Start waiting jobs in order of arrival until one can't be placed."""
        what_if, strict = view.what_if(), self.backfill == "no"
        if strict and not has_a_say(self.stages, view):
            return self._go_down_the_line(what_if)
        rows = sorted(view.active)
        walk(self.stages, what_if, rows, keep=rows, strict=strict, placement=block)
        return finish(self.stages, what_if)

    def _go_down_the_line(self, what_if: WhatIf) -> Plan:
        view, waiting = what_if.view, self._waiting
        waiting.update(view)
        for other in waiting.misjudged(view):
            what_if.wait(other, Reason.WAIT_PRIORITY)
        while (row := waiting.first(view)) is not None:
            if view.num_gpus[row] > view.total_gpus:
                what_if.wait(row, Reason.NEVER_FITS)
            elif not place(what_if, row, block):
                break
            waiting.take(view, row)
        return waiting.sign(what_if.plan())


def block(view: View, free: FreeGpus, row: int) -> Allocation | None:
    """GPUs for the gang of ``row`` on one node, or on whole idle nodes and one for the rest.

    Nodes are taken by number; of several sizes the larger idle ones first. None if there is no
    such block.
    """
    missing = view.num_gpus[row]
    sizes = [node.num_gpus if node.alive else 0 for node in view.nodes]
    parts: list[tuple[int, int]] = []
    if missing > max(sizes):
        for node in sorted(range(len(sizes)), key=lambda node: -sizes[node]):
            if 0 < sizes[node] <= missing and free.masks[node].bit_count() == sizes[node]:
                parts.append((node, free.masks[node]))
                missing -= sizes[node]
    if missing:
        taken = {node for node, _ in parts}
        for node, mask in enumerate(free.masks):
            if node not in taken and mask.bit_count() >= missing:
                parts.append((node, lowest_gpus(mask, missing)))
                break
        else:
            return None
    return Allocation(tuple(sorted(parts)))
