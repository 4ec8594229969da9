"""What is kept of a Ray, and of which token, for the end of its nodes by force."""

import json

import pytest

from rota.errors import InputError, ServerError
from rota.folder import Folder
from rota.live.provider.asked import Asked
from rota.server.ray import RayEngine, cancel_nodes, check_no_nodes


class Door:
    """Lets nobody in, as no node comes."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of a cluster that was begun with the token of a path."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "token").write_text("secret")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "token")
    folder = Folder(tmp_path)
    RayEngine(folder, (1, 1), "127.0.0.1:9", None, None, []).provider(Door())
    return folder


def test_the_path_of_the_token_is_kept(folder):
    kept = json.loads((folder.path / "ray-cluster.json").read_text())
    assert kept["token"] == str(folder.path / "token")


def test_the_end_by_force_takes_no_other_token_and_needs_no_ray_where_nothing_is(folder):
    name = json.loads((folder.path / "ray-cluster.json").read_text())["name"]
    asked = Asked(folder.path / "ray.json", name)
    node = asked.new()
    (folder.path / "token").unlink()
    with pytest.raises(ServerError, match="token is no file; put the cluster's token there"):
        cancel_nodes(folder)
    asked.drop(node)
    cancel_nodes(folder)


def test_nodes_of_ray_are_left_to_no_other_ray_and_no_other_engine(folder, monkeypatch):
    check_no_nodes(folder)
    name = json.loads((folder.path / "ray-cluster.json").read_text())["name"]
    node = Asked(folder.path / "ray.json", name).new()
    with pytest.raises(InputError, match=f"has nodes of Ray: {node}; give --on ray as before"):
        check_no_nodes(folder)
    again = RayEngine(folder, (1, 1), "127.0.0.1:10", None, None, [])
    monkeypatch.setattr(again._driver, "connect", lambda: None)
    again._driver.head = "10.0.0.1:10"
    with pytest.raises(InputError, match=r"has nodes of the Ray at 127\.0\.0\.1:9, and"):
        again.check()
    again._driver.head = "127.0.0.1:9"
    again.check()
