"""An address at which other machines find this one, the same each time."""

import contextlib
import socket

from rota.errors import InputError
from rota.folder import Folder

BEYOND = ("192.0.2.1", 9)  # an address for documentation: nothing is sent there


def lasting_place(folder: Folder) -> str:
    """HOST:PORT on the network interface by which this machine reaches others.

    The port is written down: agents that were told of it find the next controller there. Raises
    InputError if there is no such interface.
    """
    file = folder.path / "listen"
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(BEYOND)
            host = probe.getsockname()[0]
    except OSError as error:
        raise InputError(
            f"--listen: no address is known by which other machines find this one "
            f"({error.strerror}); give one, such as --listen gpu0.lab:7800"
        ) from None
    with contextlib.suppress(OSError):
        told = file.read_text().strip()
        if told.rpartition(":")[0] == host:
            return told
    with socket.socket() as probe:
        probe.bind((host, 0))
        place = f"{host}:{probe.getsockname()[1]}"
    file.write_text(place)
    return place
