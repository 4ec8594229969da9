"""The tables that the migrations of the event log are to make."""

from sqlalchemy import Column, Float, Index, Integer, MetaData, Table, Text, UniqueConstraint

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

hooks = Table(
    "hook",
    metadata,
    Column("name", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("news", Text, nullable=False),  # words with spaces between them
    Column("private", Integer, nullable=False),
    Column("secret", Text, nullable=False),
    Column("user", Text, nullable=False),
    Column("at_s", Float, nullable=False),
    Column("cursor", Integer, nullable=False),  # the event up to which all is in `delivery`
)

deliveries = Table(
    "delivery",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("hook", Text, nullable=False),
    Column("seq", Integer, nullable=False),
    Column("word", Text, nullable=False),
    Column("job_id", Text),
    Column("body", Text, nullable=False),
    Column("at_s", Float, nullable=False),
    Column("state", Text, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("next_at_s", Float, nullable=False),
    Column("answer", Text, nullable=False),
    UniqueConstraint("hook", "seq", name="delivery_hook_seq"),
    Index("delivery_due", "hook", "state", "next_at_s"),
    sqlite_autoincrement=True,
)

invitations = Table(
    "invitation",
    metadata,
    Column("token_hash", Text, primary_key=True, nullable=False),
    Column("until_s", Float, nullable=False),
    Column("used_by", Text),
)

members = Table(  # machines that have joined, by the name of their node
    "member",
    metadata,
    Column("node", Text, primary_key=True, nullable=False),
    Column("token_hash", Text, nullable=False, unique=True),
    Column("joined_s", Float, nullable=False),
)
