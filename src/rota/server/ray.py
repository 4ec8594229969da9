"""``rota up --on ray``: the cluster's nodes are those of a Ray cluster."""

import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rota.errors import InputError, ServerError
from rota.folder import Folder
from rota.live.controller.admission import Admission
from rota.live.provider.asked import Asked
from rota.live.provider.asking import AskingProvider
from rota.live.provider.book import Book
from rota.live.provider.ray import FORCE_S, Groups, RayDriver, RayError, Started


class Known(NamedTuple):
    """The cluster's name in Ray, and by what Ray was found."""

    name: str
    address: str | None
    token: str | None


class RayEngine:
    """Nodes of the Ray at ``address`` for a cluster in ``folder``, of ``gpus`` each or whole ones.

    ``token`` is the path of that Ray's token, and ``agent`` are options of the nodes' agents.
    """

    engine = "Ray"

    def __init__(
        self,
        folder: Folder,
        bounds: tuple[int, int],
        address: str | None,
        token: str | None,
        gpus: int | None,
        agent: Sequence[str],
    ) -> None:
        self.bounds = bounds
        self._folder, self._gpus, self._agent = folder, gpus, agent
        known = _known(folder)
        self._before = known.address if known and _names(folder) else None
        self._name = known.name if known else f"rota-{secrets.token_hex(3)}"
        address = address or os.environ.get("RAY_ADDRESS")
        self._driver = RayDriver(address, token or _token(), self._name)
        self._number = Asked(_asked(folder), self._name).number

    def check(self) -> None:
        """Raise InputError, with Ray's own words, if it can't be asked, or is not the one before.

        A cluster that may have nodes goes on also where Ray does not answer.
        """
        if own := _missing_token(self._driver.token):
            raise InputError(own)
        try:
            self._driver.connect()
        except RayError as error:
            if not (error.is_silence and _asked(self._folder).exists()):
                raise InputError(f"--on ray: {error}") from None
        before, now = self._before, self._driver.head
        if before and now and before != now:
            raise InputError(
                f"--on ray: {self._folder.path} has nodes of the Ray at {before}, and this one is "
                f"at {now}; give --ray-address {before}, give those back first with `rota down "
                "--now`, or give another --home"
            )

    def is_own(self, node: str) -> bool:
        """True of the names of these nodes."""
        return self._number(node) > 0

    def provider(self, admission: Admission) -> AskingProvider:
        """The provider of these nodes."""
        address = self._driver.head or self._before or self._driver.address
        token = self._driver.token
        draft = self._folder.path / "ray-cluster.json.new"
        draft.write_text(json.dumps(Known(self._name, address, token)._asdict()))
        draft.replace(_cluster(self._folder))
        groups = Groups(
            Book("Ray", Asked(_asked(self._folder), self._name), self.bounds, admission),
            self._driver,
            ["-P", "-m", "rota.cli.main", "agent", "--ends", *self._agent],
            str(self._folder.path),
            _started(self._folder),
            gpus=self._gpus,
        )
        return AskingProvider(groups)


def check_no_nodes(folder: Folder) -> None:
    """Raise InputError if a cluster has nodes of Ray: without Ray nobody would tell of them."""
    if names := _names(folder):
        raise InputError(
            f"--on: {folder.path} has nodes of Ray: {', '.join(names)}; give --on ray as before, "
            "give them back first with `rota down --now`, or give another --home"
        )


def cancel_nodes(folder: Folder) -> None:
    """Kill all of a cluster on Ray's nodes, and give them back. Raises ServerError."""
    known, hosts = _known(folder), Started(_started(folder)).hosts
    if known is None or not _names(folder):
        return
    asked = Asked(_asked(folder), known.name)
    if wrong := _missing_token(known.token):
        raise ServerError(f"Ray's nodes of {folder.path} can't be given back: {wrong}")
    driver = RayDriver(known.address, known.token, known.name)
    command = ["-m", "rota.server.down", "--home", str(folder.path)]
    try:
        left = driver.call(
            "end_by_force", FORCE_S, hosts=hosts, home=str(folder.path), command=command
        )
    except RayError as error:
        left = [str(error)]
    finally:
        driver.close()
    if left:
        raise ServerError(
            f"Ray's nodes of {folder.path} can't be given back: {'; '.join(left)}; they stay, with "
            "what runs there: try again when `ray status` answers"
        )
    asked.settle((), asked.names)


def _token() -> str | None:
    """The path by which Ray would find its token here; it is kept, as others may not have it."""
    if os.environ.get("RAY_AUTH_MODE") != "token" or os.environ.get("RAY_AUTH_TOKEN"):
        return None  # Ray would take none, or the token itself
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    return os.path.abspath(named) if named else None


def _missing_token(token: str | None) -> str:
    """Says what is wrong if Ray would take the user's own token, or there is none at the path."""
    if token is not None and not Path(token).is_file():
        return f"--ray-token: {token} is no file; put the cluster's token there, or give its path"
    named = token or os.environ.get("RAY_AUTH_TOKEN_PATH") or os.environ.get("RAY_AUTH_TOKEN")
    if os.environ.get("RAY_AUTH_MODE") == "token" and not named:
        return (
            "--ray-token: RAY_AUTH_MODE is token, and Ray would take ~/.ray/auth_token, which may "
            "be another cluster's; give the path of this cluster's token, or set "
            "RAY_AUTH_TOKEN_PATH to it"
        )
    return ""


def _known(folder: Folder) -> Known | None:
    file = _cluster(folder)
    return Known(**json.loads(file.read_text())) if file.exists() else None


def _names(folder: Folder) -> list[str]:
    """The nodes that a cluster has in Ray, or may have."""
    known = _known(folder)
    return Asked(_asked(folder), known.name).names if known else []


def _cluster(folder: Folder) -> Path:
    return folder.path / "ray-cluster.json"


def _asked(folder: Folder) -> Path:
    return folder.path / "ray.json"


def _started(folder: Folder) -> Path:
    return folder.path / "ray-hosts.json"
