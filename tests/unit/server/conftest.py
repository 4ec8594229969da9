import httpx
import pytest

from rota.folder import Folder
from support.served import served


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path / "home").create()


@pytest.fixture
def cluster(folder):
    with served(folder) as it:
        yield it


@pytest.fixture
def user_token(cluster, folder):
    return folder.token.read_text().strip()


@pytest.fixture
def agent_token(cluster, folder):
    return folder.agent_token.read_text().strip()


@pytest.fixture
def http(cluster, user_token):
    """A client with the user's token."""
    headers = {"Authorization": f"Bearer {user_token}"}
    with httpx.Client(base_url=cluster.url, headers=headers, trust_env=False) as client:
        yield client
