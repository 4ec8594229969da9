import os
import socket

from rota.live.wire.peer import Peer, peer_of


def test_who_connected_is_told_by_the_kernel() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert peer_of(ours) == Peer(os.getpid(), os.getuid(), os.getgid())
