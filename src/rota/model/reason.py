"""Reasons for which jobs don't run: stable codes, and a sentence for each."""

from enum import IntEnum


class Reason(IntEnum):
    """The reason for which a job holds no GPUs. Public interface: names never change meaning."""

    NONE = 0
    WAIT_RESOURCES = 1
    WAIT_GANG_FRAGMENTED = 2
    WAIT_TOPOLOGY = 3
    WAIT_QUOTA = 4
    WAIT_FAIRSHARE = 5
    WAIT_PRIORITY = 6
    WAIT_DEPENDENCY = 7
    WAIT_RESERVATION = 8
    WAIT_BACKOFF = 9
    HELD_BY_USER = 10
    HELD_BY_ADMIN = 11
    NEVER_FITS = 12
    NODE_UNHEALTHY = 13
    SLICE_WAITING_TURN = 14
    PREEMPTED_BY = 15
    PACK_UNDONE = 16
    TRIAL_BEHIND = 17
    WAIT_DISK = 18
    NODE_CLOSED = 19
    WAIT_DEVICE_MEMORY = 20
    WAIT_GAPS = 21
    FILL_UNDONE = 22
    IDLE = 23
    WAIT_LIMIT = 24


CODES = frozenset(map(int, Reason))
SENTENCES = {
    Reason.NONE: "it holds the GPUs it asked for, or is about to",
    Reason.WAIT_RESOURCES: "too few GPUs are free",
    Reason.WAIT_GANG_FRAGMENTED: "enough GPUs are free, but spread over too many nodes",
    Reason.WAIT_TOPOLOGY: "the GPUs it must run on are taken",
    Reason.WAIT_QUOTA: "its queue's quota is used up",
    Reason.WAIT_FAIRSHARE: "its owner has had more than a fair share",
    Reason.WAIT_PRIORITY: "jobs that stand before it in the policy's order come first",
    Reason.WAIT_DEPENDENCY: "a job that it depends on has not ended",
    Reason.WAIT_RESERVATION: "the free GPUs are reserved",
    Reason.WAIT_BACKOFF: "its last try failed, and it waits before the next one",
    Reason.HELD_BY_USER: "its owner suspended it; `rota resume` lets it go on",
    Reason.HELD_BY_ADMIN: "an administrator holds it back",
    Reason.NEVER_FITS: "it asks for more GPUs than the cluster has",
    Reason.NODE_UNHEALTHY: "the node that holds it does not answer",
    Reason.SLICE_WAITING_TURN: "it waits for its turn",
    Reason.PREEMPTED_BY: "jobs that stand before it in the policy's order took its GPUs",
    Reason.PACK_UNDONE: "sharing a GPU slowed it down, so it waits for one of its own",
    Reason.TRIAL_BEHIND: "other trials of its search promise more",
    Reason.WAIT_DISK: "the disk of the state folder is full: nothing is begun until it has room",
    Reason.NODE_CLOSED: "nodes that it needs are cordoned or drained, and take no job",
    Reason.WAIT_DEVICE_MEMORY: "jobs that can't give their GPU memory up have the GPUs",
    Reason.WAIT_GAPS: "it uses what foreground jobs leave of a GPU, and there is no gap for it yet",
    Reason.FILL_UNDONE: "it slowed a foreground job beyond its limit, so it waits for another gap",
    Reason.IDLE: "it has called no operation for a while; its next call brings it back",
    Reason.WAIT_LIMIT: "the policy lets no more jobs take turns on the GPUs",
}
