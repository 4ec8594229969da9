"""The SQLite event store keeps the store contract."""

import pytest

from rota.store.events import EventStore
from rota.testing.store_contract import StoreContract


class TestEventStore(StoreContract):
    @pytest.fixture
    def open_store(self, tmp_path):
        return lambda: EventStore(tmp_path / "rota.db")
