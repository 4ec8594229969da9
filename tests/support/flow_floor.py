"""The floor of an island with one client, whose workers are the test's own process."""

import os
import socket
from pathlib import Path

from rota.flow.floor import Floor
from rota.flow.island import Island
from rota.flow.members import Member, Place
from rota.flow.order import Fifo
from rota.flow.page import rings_of

CLIENT = 7


class OneClient:
    """A floor of so many devices, whose only client has a worker on each of the first two."""

    def __init__(self, folder: Path, devices: int, device_bytes: int) -> None:
        self.floor = Floor(folder, devices, device_bytes, Island(rings_of(devices), Fifo()))
        self.connection, other = socket.socketpair()
        self.member = member = Member(CLIENT, other, self.floor.page)
        for device in range(2):
            slot = self.floor.free_slot(device)
            member.order.append(slot)
            member.slots[slot], member.slot_on[device] = device, slot
            self.floor.places[slot] = Place(slot, member, os.getpid())
        self.floor.members[CLIENT] = member

    def close(self) -> None:
        """Close all that is open."""
        self.connection.close()
        self.member.connection.close()
        for place in self.floor.places.values():
            os.close(place.process)
        self.floor.bells.close()
        self.floor.page.close()
