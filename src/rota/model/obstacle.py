"""Obstacles that no further try to start a job gets over."""

from enum import StrEnum


class Obstacle(StrEnum):
    """What keeps a job from starting for good: the fault of what was submitted, not of a node.

    Agents tell the value. A later version may have others; each of them ends the job.
    """

    SNAPSHOT = "snapshot"  # the folder that it is to run in can't be unpacked, or is gone
    RESUME_FROM = "resume_from"  # the checkpoints that it is to begin from can't be copied
