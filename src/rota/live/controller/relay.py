"""Passes messages between agents: the state of a job that moves.

Pieces are passed on as they are, and only as many are on their way as the receiving agent has asked
for; the controller neither reads nor keeps them.
"""

from rota.errors import AgentError
from rota.live.controller.record import Record
from rota.live.controller.recovery import seats
from rota.live.wire import Message, unpack
from rota.live.wire.messages import check_from_agent


def pass_on(record: Record, sender: str, message: Message) -> None:
    """Pass a ``fetch`` or ``fetched`` on to the node that it names.

    Only between the two nodes of a migration in progress: any other node is told to stop.
    """
    row = record.rows.get(message["job_id"])
    about = {"job_id": message["job_id"], "attempt": message["attempt"]}
    asks = message["type"] == "fetch"
    if row is None or message["attempt"] != record.state.attempt[row]:
        nodes = None
    else:
        nodes = migration(record, row)
    asked, asker = message["node"], sender
    if not asks:
        asked, asker = asker, asked
    if nodes != (asked, asker):
        if asks:
            error = f"job {message['job_id']} does not move from {asked} to {asker} any more"
            record.outboxes.tell(sender, {"type": "fetched", **about, "error": error})
        return
    passed = {**message, "asker": asker} if asks else message
    if not record.outboxes.tell(message["node"], passed) and asks:
        record.outboxes.tell(sender, {"type": "fetched", **about, "away": True})


def pass_piece_on(record: Record, sender: str, frame: bytes) -> None:
    """Pass a piece of a file on to the node that its line names. Raises AgentError."""
    message, _ = unpack(frame)
    if message["type"] != "fetched":
        raise AgentError(f"type: {message['type']!r:.80} can't be used; it must be fetched")
    check_from_agent(message)
    row = record.rows.get(message["job_id"])
    if row is not None and migration(record, row) == (sender, message["node"]):
        record.outboxes.tell(message["node"], frame)


def migration(record: Record, row: int) -> tuple[str, str] | None:
    """(source, destination) of a job that is moving; None if it is not."""
    ends = [record.state.nodes[index].name for index in seats(record.state, row)]
    return (ends[0], ends[1]) if len(ends) > 1 else None
