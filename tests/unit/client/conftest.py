import pytest

from rota.client.client import Client
from rota.folder import Folder
from support.served import served


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch):
    for name in ("ROTA_SERVER", "ROTA_TOKEN", "ROTA_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path / "home").create()


@pytest.fixture
def cluster(folder):
    with served(folder) as it:
        yield it


@pytest.fixture
def client(cluster, folder):
    with Client(folder=folder) as it:
        yield it
