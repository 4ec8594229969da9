"""What a kubelet gives a container: its command, its environment, its volumes."""

import base64
import http
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import httpx

from support.containers import Command, Mount

PATHS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TOKEN_MODE = 0o600

Told = dict[str, Any]  # an object of the API


class Image:
    """What an image brings: its environment, and its command if a container names none."""

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        entrypoint: Sequence[str] = (),
        user: int = 0,
    ) -> None:
        self.environment = {"PATH": PATHS} | dict(environment or {})
        self.entrypoint, self.user = entrypoint, user


class Bound(Protocol):
    """A pod on a node: ``told`` as the API has it, ``gpus`` those of the node that it may use."""

    told: Told
    namespace: str
    name: str
    uid: str
    node: str
    address: str
    gpus: Sequence[int]
    folder: Path


class Lacks(Exception):
    """A container can't be started yet: the reason as its status tells it."""

    def __init__(self, reason: str, words: str = "") -> None:
        super().__init__(words)
        self.reason = reason


class Contents:
    """Asks the API by ``call`` for what pods refer to; ``claims`` has the folders of claims."""

    def __init__(self, call: Callable[..., Any], server: httpx.URL, claims: Path) -> None:
        self._call, self._claims = call, claims
        host, port = server.host, str(server.port)
        self._server = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}

    def command(self, pod: Bound, spec: Told, image: Image) -> Command:
        """What a container of a pod is to run; raises ``Lacks``."""
        whole = pod.told["spec"]
        security = {**whole.get("securityContext", {}), **spec.get("securityContext", {})}
        user = security.get("runAsUser", image.user)
        if security.get("runAsNonRoot") and user == 0:
            words = "container has runAsNonRoot and image will run as root"
            raise Lacks("CreateContainerConfigError", words)
        group = security.get("runAsGroup", 0)
        owner = whole.get("securityContext", {}).get("fsGroup")
        others = [*security.get("supplementalGroups", []), *([] if owner is None else [owner])]
        volumes = {each["name"]: each for each in whole.get("volumes", [])}
        sources = {
            name: self._volume(pod, volumes[name], user, owner)
            for name in {each["name"] for each in spec.get("volumeMounts", [])}
        }
        mounts = []
        for each in spec.get("volumeMounts", []):
            source, is_fixed = sources[each["name"]]
            if part := each.get("subPath"):
                source = source / part
                if not source.exists():
                    source.mkdir(parents=True)
            mounts.append(Mount(source, each["mountPath"], is_fixed or each.get("readOnly", False)))
        environment = self._environment(pod, spec, image, user)
        words = spec.get("command", [*image.entrypoint]) or []
        words = [_expand(word, environment) for word in (*words, *spec.get("args", []))]
        return Command(
            words=words,
            environment=environment,
            folder=spec.get("workingDir", "/"),
            user=user,
            group=group,
            other_groups=others,
            mounts=mounts,
            has_read_only_root=security.get("readOnlyRootFilesystem", False),
            message_path=spec["terminationMessagePath"],
            has_message_from_log=spec["terminationMessagePolicy"] == "FallbackToLogsOnError",
        )

    def _environment(self, pod: Bound, spec: Told, image: Image, user: int) -> dict[str, str]:
        found = {**image.environment, "HOSTNAME": pod.name}
        found.setdefault("HOME", "/" if user else "/root")
        found |= self._server
        if pod.gpus:
            found["NVIDIA_VISIBLE_DEVICES"] = ",".join(map(str, pod.gpus))
        for each in spec.get("envFrom", []):
            for kind, source in each.items():
                if kind != "prefix":
                    data = self._data(pod, kind.removesuffix("Ref"), source["name"], source)
                    start = each.get("prefix", "")
                    found |= {f"{start}{key}": value.decode() for key, value in data.items()}
        for each in spec.get("env", []):
            source = each.get("valueFrom")
            if source is None:
                found[each["name"]] = _expand(each.get("value", ""), found)
            elif "fieldRef" in source:
                found[each["name"]] = _field(pod, source["fieldRef"]["fieldPath"])
            else:
                ((kind, key),) = source.items()
                data = self._data(pod, kind.removesuffix("KeyRef"), key["name"], key)
                if key["key"] in data:
                    found[each["name"]] = data[key["key"]].decode()
                elif not key.get("optional"):
                    named = "Secret" if kind == "secretKeyRef" else "ConfigMap"
                    words = f"couldn't find key {key['key']} in {named} "
                    words += f"{pod.namespace}/{key['name']}"
                    raise Lacks("CreateContainerConfigError", words)
        return found

    def _data(self, pod: Bound, kind: str, name: str, source: Told) -> dict[str, bytes]:
        """What a secret or a config map holds."""
        path = f"/api/v1/namespaces/{pod.namespace}/{kind.lower()}s/{name}"
        try:
            told = self._call("GET", path)
        except httpx.HTTPStatusError as error:
            if error.response.status_code != http.HTTPStatus.NOT_FOUND:
                raise
            if source.get("optional"):
                return {}
            words = f'{kind.lower()} "{name}" not found'
            raise Lacks("CreateContainerConfigError", words) from None
        if kind == "secret":
            return {key: base64.b64decode(each) for key, each in told.get("data", {}).items()}
        return {key: each.encode() for key, each in told.get("data", {}).items()}

    def _volume(self, pod: Bound, volume: Told, user: int, owner: int | None) -> tuple[Path, bool]:
        """The folder of a volume, and whether it can't be written to."""
        name = volume["name"]
        ((kind, source),) = ((key, each) for key, each in volume.items() if key != "name")
        if kind == "hostPath":
            return Path(source["path"]), False
        if kind == "persistentVolumeClaim":
            return self._claimed(pod, source["claimName"]), source.get("readOnly", False)
        folder = pod.folder / "volumes" / name
        if kind == "emptyDir":
            if not folder.exists():
                folder.mkdir(parents=True)
                folder.chmod(0o777)
                if owner is not None:
                    os.chown(folder, -1, owner)
                    folder.chmod(0o2777)
            return folder, False
        mode = source.get("defaultMode", 0o644)
        try:
            files = self._projected(pod, kind, source)
        except Lacks as lack:  # a kubelet tells of volumes in events alone
            raise Lacks("ContainerCreating") from lack
        for path, (data, own) in files.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            file.chmod((own or mode) | (0o040 if owner is not None else 0))
            # A token is the user's alone, and its mode the only one that is that strict.
            os.chown(file, user if own == TOKEN_MODE else 0, 0 if owner is None else owner)
        folder.mkdir(parents=True, exist_ok=True)
        return folder, True

    def _claimed(self, pod: Bound, claim: str) -> Path:
        """The folder of a claim, the same on all nodes."""
        path = f"/api/v1/namespaces/{pod.namespace}/persistentvolumeclaims/{claim}"
        try:
            self._call("GET", path)
        except httpx.HTTPStatusError:
            raise Lacks("ContainerCreating") from None
        return self.claim(pod.namespace, claim)

    def claim(self, namespace: str, name: str) -> Path:
        """The folder of a claim, whether or not the server knows it."""
        folder = self._claims / namespace / name
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
        return folder

    def _projected(self, pod: Bound, kind: str, source: Told) -> dict[str, tuple[bytes, int]]:
        """The files of a volume that is made from the API: data and mode, 0 for the volume's."""
        if kind == "projected":
            files: dict[str, tuple[bytes, int]] = {}
            for part in source["sources"]:
                ((each, own),) = part.items()
                files |= self._projected(pod, each, own)
            return files
        if kind == "downwardAPI":
            return {
                item["path"]: (_field(pod, item["fieldRef"]["fieldPath"]).encode(), 0)
                for item in source["items"]
            }
        if kind == "serviceAccountToken":
            account = pod.told["spec"]["serviceAccountName"]
            path = f"/api/v1/namespaces/{pod.namespace}/serviceaccounts/{account}/token"
            bound = {"kind": "Pod", "apiVersion": "v1", "name": pod.name, "uid": pod.uid}
            audiences = [source["audience"]] if "audience" in source else []
            asked = {"expirationSeconds": source["expirationSeconds"], "boundObjectRef": bound}
            try:
                told = self._call("POST", path, {"spec": asked | {"audiences": audiences}})
            except httpx.HTTPStatusError as error:
                if error.response.is_server_error:
                    raise
                raise Lacks("ContainerCreating") from None  # account or pod are not there
            return {source["path"]: (told["status"]["token"].encode(), TOKEN_MODE)}
        key = "secretName" if kind == "secret" and "secretName" in source else "name"
        data = self._data(pod, kind, source[key], source)
        if "items" not in source:
            return {name: (each, 0) for name, each in data.items()}
        return {
            item["path"]: (data[item["key"]], item.get("mode", 0))
            for item in source["items"]
            if item["key"] in data
        }


def _field(pod: Bound, path: str) -> str:
    """What the downward API tells of a pod."""
    known = {
        "metadata.name": pod.name,
        "metadata.namespace": pod.namespace,
        "metadata.uid": pod.uid,
        "spec.nodeName": pod.node,
        "spec.serviceAccountName": pod.told["spec"]["serviceAccountName"],
        "status.hostIP": pod.address,
        "status.podIP": pod.address,
    }
    if part := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
        found: str = pod.told["metadata"].get(part[1], {}).get(part[2], "")
        return found
    return known[path]


def _expand(text: str, environment: Mapping[str, str]) -> str:
    """A value or a word with ``$(NAME)`` replaced."""
    name = r"\$\(([A-Za-z_.][-A-Za-z0-9_.]*)\)"
    return re.sub(name, lambda found: environment.get(found[1], found[0]), text)
