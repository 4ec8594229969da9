import pytest


@pytest.fixture
def write(tmp_path):
    def write(text, name="jobs.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write
