"""Obstacles that another try to start a job can't overcome."""

from enum import StrEnum


class Obstacle(StrEnum):
    """A reason why a job can never start: a fault of what was submitted, not of a node.

    Agents tell the value. A later version may have others; each of them ends the job.
    """

    SNAPSHOT = "snapshot"  # the folder that it is to run in can't be unpacked, or is gone
    RESUME_FROM = "resume_from"  # the checkpoints that it is to begin from can't be copied
