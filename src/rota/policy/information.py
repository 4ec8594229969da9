"""Classes of what policies are told about job lengths; only equals can be compared.

Pollux' own class, *A*, is told nothing, or the label alone (*A + label*); class *B* what users
declare, as well. What jobs measure of themselves every policy may read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rota.policy.cpus.stage import CpuStage

NONE = "none"
LABEL = "label"
HISTORY = "history"
DECLARED = "declared"
DECLARED_AND_LABEL = "declared, label"
ORACLE = "oracle"

# Word -> what it means, from the least to the most.
INFORMATION = {
    NONE: "nothing of a job's length",
    LABEL: "nothing of a job's length, but which jobs are of one kind",
    HISTORY: "how large the jobs were that have ended, or a sample of sizes",
    DECLARED: "what users declare: epochs, steps, or a time limit",
    DECLARED_AND_LABEL: "what users declare, and which jobs are of one kind",
    ORACLE: "the truth, which no live scheduler knows",
}
UNDECLARED = "undeclared"
WITH_LABEL = {NONE: LABEL, DECLARED: DECLARED_AND_LABEL}


class Declares(Protocol):
    """A policy's declaration of what it is told."""

    information: str
    needs_duration: bool
    cpus: CpuStage | None


def information_of(policy: Declares) -> str:
    """The information that a policy with its settings declares; UNDECLARED if it declares none.

    A stage of CPU cores that learns is told which jobs are of one kind.
    """
    if policy.needs_duration:
        return ORACLE
    told = policy.information
    return WITH_LABEL.get(told, told) if policy.cpus and policy.cpus.learns else told
