"""The tables that the migrations of the event log are to make."""

from sqlalchemy import Column, Integer, MetaData, Table, Text, UniqueConstraint

metadata = MetaData()

events = Table(
    "event",
    metadata,
    Column("seq", Integer, primary_key=True),  # 1, 2, ... without a gap
    Column("type", Text, nullable=False),
    Column("body", Text, nullable=False),  # JSON, see rota.store.codec
)

submissions = Table(
    "submission",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("user", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("body_hash", Text, nullable=False),
    Column("row", Integer, nullable=False),
    UniqueConstraint("user", "key", name="submission_user_key"),
)

controller_lives = Table(
    "controller_life",
    metadata,
    Column("epoch", Integer, primary_key=True),
)

identity = Table(  # one row, made with the file
    "identity",
    metadata,
    Column("identity", Text, primary_key=True),
)
