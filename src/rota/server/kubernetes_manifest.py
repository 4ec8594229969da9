"""The manifest of a controller that runs as a pod of Kubernetes."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from rota.live.provider.kubernetes_pods import HOME, container_security, instance, pod_security
from rota.server.kubernetes import KUEUE, OWN_POD, PORT, RIGHTS

STATE = "10Gi"  # of the claim
# Kubernetes labels the pods of a StatefulSet with its name and a hash: 63 characters together.
MOST_NAME = 63 - len("-controller-0123456789")


def manifest(
    name: str, namespace: str, image: str, arguments: Sequence[str], queue: str | None = None
) -> str:
    """The YAML of a controller that is called by ``rota up`` with these arguments.

    ``queue`` is that of Kueue, whose being there the controller checks.
    """
    objects = {
        "Whom the controller acts as, and what it may do: in this namespace alone.": (
            _account(name),
            _role(name, queue),
            _binding(name, namespace),
        ),
        "Where agents find the controller, also after it has moved.": (_service(name),),
        "The controller. Its pods of agents, their Secrets and its Lease go with it.": (
            _controller(name, image, arguments),
        ),
    }
    texts = []
    for comment, group in objects.items():
        for number, each in enumerate(group):
            about = {**each["metadata"], "namespace": namespace, "labels": instance(name)}
            told = {"apiVersion": each["apiVersion"], "kind": each["kind"], "metadata": about}
            text = yaml.safe_dump({**told, **each, "metadata": about}, sort_keys=False)
            texts.append(text if number else f"# {comment}\n{text}")
    return "---\n".join(texts)


def _account(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _called(name)}


def _role(name: str, queue: str | None) -> dict[str, Any]:
    rules = [
        {"apiGroups": [group], "resources": [kind], "verbs": list(verbs)}
        for (group, kind), verbs in RIGHTS.items()
    ]
    if queue:
        rules.append({"apiGroups": [KUEUE], "resources": ["localqueues"], "verbs": ["get"]})
    group = "rbac.authorization.k8s.io/v1"
    return {"apiVersion": group, "kind": "Role", "metadata": _called(name), "rules": rules}


def _binding(name: str, namespace: str) -> dict[str, Any]:
    own = _called(name)["name"]
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": _called(name),
        "roleRef": {"apiGroup": group, "kind": "Role", "name": own},
        "subjects": [{"kind": "ServiceAccount", "name": own, "namespace": namespace}],
    }


def _service(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {
            "clusterIP": "None",  # the name is the pod's own address
            "publishNotReadyAddresses": True,
            "selector": _labels(name),
            "ports": [{"name": "api", "port": PORT}],
        },
    }


def _controller(name: str, image: str, arguments: Sequence[str]) -> dict[str, Any]:
    own, about = _called(name)["name"], {"labels": _labels(name)}
    container = {
        "name": "controller",
        "image": image,
        "command": ["rota", "up"],
        "args": [*arguments, f"--home={HOME}"],
        "env": [
            {"name": "HOME", "value": HOME},
            {"name": "ROTA_HOME", "value": HOME},
            {"name": OWN_POD, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
        "ports": [{"name": "api", "containerPort": PORT}],
        "resources": {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "2Gi"}},
        "securityContext": container_security(),
        "volumeMounts": [{"name": "state", "mountPath": HOME}],
    }
    claim = {
        "metadata": {"name": "state"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": STATE}},
        },
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": _called(name),
        "spec": {
            "replicas": 1,
            "serviceName": name,
            "selector": {"matchLabels": _labels(name)},
            "template": {
                "metadata": about,
                "spec": {
                    "serviceAccountName": own,
                    "enableServiceLinks": False,
                    "securityContext": pod_security(),
                    "containers": [container],
                },
            },
            "volumeClaimTemplates": [claim],
        },
    }


def _called(name: str) -> dict[str, Any]:
    return {"name": f"{name}-controller"}


def _labels(name: str) -> Mapping[str, str]:
    return {**instance(name), "app.kubernetes.io/component": "controller"}
