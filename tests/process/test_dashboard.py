"""The dashboard that `rota up --ui` starts: its life beside the cluster's."""

import json
import os
import signal
import socket
import subprocess
import sys

import httpx
import psutil
import pytest

from .conftest import MARK, Cluster, is_gone, until

pytest.importorskip("nicegui")
pytest.importorskip("plotly")


@pytest.fixture
def cluster(tmp_path):
    it = Cluster(tmp_path, options=("--ui",))
    try:
        yield it
    finally:
        it.close()


def dashboard(cluster: Cluster, but: int = 0) -> tuple[str, psutil.Process]:
    """Its address and process once it answers; ``but`` is the pid of one that is gone."""

    def told() -> dict[str, object] | None:
        try:
            found: dict[str, object] = json.loads(cluster.folder.ui.read_text())
        except (OSError, ValueError):
            return None
        return found if found["pid"] != but else None

    def answers() -> bool:
        try:
            return httpx.get(url, trust_env=False).status_code == 401
        except httpx.TransportError:
            return False

    found = until(told, "the dashboard has told its address")
    url = str(found["url"])
    until(answers, "the dashboard answers those who are not signed in")
    return url, psutil.Process(int(str(found["pid"])))


def ui(cluster: Cluster, *options: str) -> subprocess.Popen[str]:
    """``rota ui`` by hand."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ROTA_")}
    home = str(cluster.folder.path)
    return subprocess.Popen(
        [sys.executable, "-m", "rota.cli.main", "ui", "--no-open", *options],
        stderr=subprocess.PIPE,
        text=True,
        env=environment | {"ROTA_HOME": home, MARK: home},
    )


def test_it_ends_with_the_cluster_and_the_cluster_goes_on_without_it(cluster):
    cluster.up()
    _, first = dashboard(cluster)
    second = ui(cluster)
    _, said = second.communicate()
    assert second.returncode == 0
    assert "/sign-in?link=" in said  # that runs already, and gives another link
    cluster.down()
    assert is_gone(first)
    assert not cluster.folder.ui.exists()

    cluster.up()
    _, orphan = dashboard(cluster)
    cluster.kill_controller()
    until(lambda: is_gone(orphan), "it ends with a controller that is killed")
    cluster.up()
    _, killed = dashboard(cluster, orphan.pid)
    killed.send_signal(signal.SIGKILL)
    until(lambda: is_gone(killed), "it is dead")
    assert cluster.client.policies()

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = ui(cluster, "--port", str(port))
        _, said = refused.communicate()
    assert refused.returncode == 2
    assert f"--port: {port} can't be used" in said

    by_hand = ui(cluster)
    try:
        url, again = dashboard(cluster, killed.pid)
        assert again.pid == by_hand.pid
        assert httpx.post(f"{url}/link", trust_env=False).status_code == 403
    finally:
        by_hand.send_signal(signal.SIGINT)
        by_hand.communicate()
    assert not cluster.folder.ui.exists()
