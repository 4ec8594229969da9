"""How a client of an island stands with its devices, and the changes between these states. Pure."""

from enum import StrEnum


class Standing(StrEnum):
    """The states of a client, from its connection on, as its host knows them."""

    SILENT = "silent"  # it has not said hello
    ORDERED = "ordered"  # its operations get turns
    RETIRING = "retiring"  # it gets no new turn, and has a grant once its turns are over
    GRANTED = "granted"  # it has a standing grant for its devices, and needs no turns
    LEAVING = "leaving"  # it gets no new turn, and goes once its turns are over
    GOING = "going"  # it has no turn, and its workers are told to leave their devices
    AWAY = "away"  # its workers are off their devices
    COMING = "coming"  # its workers are told to come to devices, and are not all there
    GONE = "gone"


# From one state to another: what has happened then. From each one it may be GONE.
TRANSITIONS: dict[tuple[Standing, Standing], str] = {
    (Standing.SILENT, Standing.ORDERED): "it has said hello",
    (Standing.SILENT, Standing.AWAY): "it has taken a seat whose workers are off their devices",
    (Standing.ORDERED, Standing.RETIRING): "nobody beside it has had anything to do for a while",
    (Standing.RETIRING, Standing.ORDERED): "somebody beside it has, or it has lost a worker",
    (Standing.RETIRING, Standing.GRANTED): "its turns are over",
    (Standing.GRANTED, Standing.ORDERED): "its grant was taken back",
    (Standing.ORDERED, Standing.LEAVING): "its agent takes its devices",
    (Standing.RETIRING, Standing.LEAVING): "its agent takes its devices",
    (Standing.LEAVING, Standing.ORDERED): "its agent lets it stay",
    (Standing.LEAVING, Standing.GOING): "its turns are over",
    (Standing.GOING, Standing.AWAY): "its workers are off their devices",
    (Standing.GOING, Standing.COMING): "its agent gives it devices",
    (Standing.AWAY, Standing.COMING): "its agent gives it devices",
    (Standing.COMING, Standing.GOING): "its agent takes them before its workers are there",
    (Standing.COMING, Standing.ORDERED): "its workers are there",
}

IN_ORDER = frozenset({Standing.ORDERED, Standing.RETIRING, Standing.LEAVING})  # of the island
OFF = frozenset({Standing.GOING, Standing.AWAY, Standing.COMING})  # it is not in the order
MOVES = frozenset({Standing.LEAVING, Standing.GOING, Standing.COMING})  # its agent awaits the end


def is_allowed(before: Standing, after: Standing) -> bool:
    """True if a client may change so."""
    ends = after == Standing.GONE and before != Standing.GONE
    return ends or (before, after) in TRANSITIONS
