"""Where pods may be, as the scheduler of Kubernetes 1.20 sees it, and in its words.

It knows of requests, ``nodeSelector``, required node affinity, required pod anti-affinity, taints
and cordons. Pods and nodes are as the API has them, by uid and by name.
"""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

GPU = "nvidia.com/gpu"
OVER = ("Succeeded", "Failed")
UNITS = {"": 1, "m": Decimal("0.001")} | {
    f"{letter}{end}": base**power
    for end, base in (("", 1000), ("i", 1024))
    for power, letter in enumerate("kMGTPE" if not end else "KMGTPE", 1)
}

Told = dict[str, Any]  # an object of the API


class Places:
    """The nodes, and who is there."""

    def __init__(self, pods: Mapping[str, Told], nodes: Mapping[str, Told]) -> None:
        self.pods, self.nodes = pods, nodes

    def place(self, pod: Told) -> tuple[str | None, str]:
        """The node for a pod, with most GPUs free, then CPUs; or None, and why."""
        fitting, why = [], []
        for name, node in self.nodes.items():
            found = self._why_not(pod, node)
            why += found
            if not found:
                free = self.free(node)
                fitting.append((-free.get(GPU, 0), -free.get("cpu", 0), name))
        if fitting:
            return min(fitting)[2], ""
        if not self.nodes:
            return None, "no nodes available to schedule pods"
        counts = sorted(f"{why.count(reason)} {reason}" for reason in set(why))
        total = len(self.nodes)
        return None, f"0/{total} nodes are available: {', '.join(counts)}."

    def _why_not(self, pod: Told, node: Told) -> list[str]:
        """Why a pod can't be on a node: the first kind of reason, as the scheduler stops there."""
        tolerations = pod["spec"].get("tolerations", [])
        cordon = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
        if node["spec"].get("unschedulable") and not _tolerates(tolerations, cordon):
            return ["node(s) were unschedulable"]
        for taint in node["spec"].get("taints", []):
            if taint["effect"] != "PreferNoSchedule" and not _tolerates(tolerations, taint):
                named = f"{{{taint['key']}: {taint.get('value', '')}}}"
                return [f"node(s) had taint {named}, that the pod didn't tolerate"]
        if not _selects_node(pod, node):
            return ["node(s) didn't match Pod's node affinity"]
        if lacking := self.lacking(pod, node):
            return [f"Insufficient {name}" for name in lacking]
        if self._repels(pod, node):
            return ["node(s) didn't match pod affinity/anti-affinity"]
        return []

    def free(self, node: Told, but: str = "") -> dict[str, Decimal]:
        """What no pod has taken of a node, but for one pod."""
        free = {key: amount(each) for key, each in node["status"].get("allocatable", {}).items()}
        for uid, pod in self.pods.items():
            here = pod["spec"].get("nodeName") == node["metadata"]["name"]
            if here and pod["status"].get("phase") not in OVER and uid != but:
                for key, each in requests(pod).items():
                    free[key] = free.get(key, Decimal(0)) - each
        return free

    def lacking(self, pod: Told, node: Told) -> list[str]:
        """The resources of which a node has too little for a pod."""
        free = self.free(node, pod["metadata"]["uid"])
        wanted = requests(pod).items()
        return [key for key, each in wanted if each and each > free.get(key, Decimal(0))]

    def _repels(self, pod: Told, node: Told) -> bool:
        """True if required anti-affinity keeps it from a node: its own, or that of pods there."""
        labels = node["metadata"].get("labels", {})
        for other in self.pods.values():
            there = self.nodes.get(other["spec"].get("nodeName", ""))
            if there is None or other["status"].get("phase") in OVER:
                continue
            for one, two in ((pod, other), (other, pod)):
                for term in _anti_affinity(one):
                    key = term["topologyKey"]
                    near = there["metadata"].get("labels", {}).get(key)
                    if key in labels and near == labels[key] and _is_meant(term, one, two):
                        return True
        return False


def amount(text: str) -> Decimal:
    """A quantity, such as "500m" or "64Gi"."""
    found = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", text)
    assert found, text
    return Decimal(found[1]) * UNITS[found[2]]


def requests(pod: Told) -> dict[str, Decimal]:
    """What a pod asks for, of each resource."""
    total = {"pods": Decimal(1)}
    for container in pod["spec"]["containers"]:
        for key, each in container.get("resources", {}).get("requests", {}).items():
            total[key] = total.get(key, Decimal(0)) + amount(each)
    return total


def _tolerates(tolerations: Sequence[Told], taint: Told) -> bool:
    return any(
        each.get("effect") in (None, "", taint["effect"])
        and each.get("key") in (None, "", taint["key"])
        and (each.get("operator") == "Exists" or each.get("value", "") == taint.get("value", ""))
        for each in tolerations
    )


def _matches(labels: Mapping[str, str], expressions: Sequence[Told]) -> bool:
    for each in expressions:
        value, kind = labels.get(each["key"]), each["operator"]
        if kind in ("In", "NotIn"):
            if (value in each["values"]) != (kind == "In"):
                return False
        elif (value is not None) != (kind == "Exists"):
            return False
    return True


def _selects_node(pod: Told, node: Told) -> bool:
    spec, labels = pod["spec"], node["metadata"].get("labels", {})
    if any(labels.get(key) != value for key, value in spec.get("nodeSelector", {}).items()):
        return False
    affinity = spec.get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    fields = {"metadata.name": node["metadata"]["name"]}
    return required is None or any(
        _matches(labels, term.get("matchExpressions", []))
        and _matches(fields, term.get("matchFields", []))
        for term in required["nodeSelectorTerms"]
    )


def _anti_affinity(pod: Told) -> list[Told]:
    affinity = pod["spec"].get("affinity", {}).get("podAntiAffinity", {})
    terms: list[Told] = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", [])
    return terms


def _is_meant(term: Told, of: Told, other: Told) -> bool:
    """True if a term of one pod's anti-affinity is about the other."""
    selector, labels = term.get("labelSelector"), other["metadata"].get("labels", {})
    namespaces = term.get("namespaces") or [of["metadata"]["namespace"]]
    return (
        selector is not None
        and other["metadata"]["namespace"] in namespaces
        and all(labels.get(key) == each for key, each in selector.get("matchLabels", {}).items())
        and _matches(labels, selector.get("matchExpressions", []))
    )
