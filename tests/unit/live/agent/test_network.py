import asyncio

import pytest

from rota.errors import AgentError
from rota.live.agent.network import Meeting, interface_of, reach


def test_the_interface_of_an_address_is_found():
    assert interface_of("127.0.0.1") == "lo"


def test_an_address_that_no_interface_has_is_named():
    with pytest.raises(AgentError, match=r"no interface .* 192\.0\.2\.7"):
        interface_of("192.0.2.7")
    with pytest.raises(AgentError, match=r"192\.0\.2\.7 can't be listened on"):
        Meeting("192.0.2.7")


def test_who_can_be_reached_is_told_apart_from_who_can_not():
    async def whole():
        there, gone = Meeting("127.0.0.1"), Meeting("127.0.0.1")
        gone.close()
        places = [("a", "127.0.0.1", there.port), ("b", "127.0.0.1", gone.port)]
        try:
            assert await reach(places[:1]) == ""
            assert "node b at 127.0.0.1 can't be reached" in await reach(places)
        finally:
            there.close()

    asyncio.run(whole())
