"""The event log, submissions by idempotency key, and the lives of the controller."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

APPEND_ONLY = ("event", "submission", "controller_life")


def upgrade() -> None:
    op.create_table(
        "event",
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "submission",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("user", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("body_hash", sa.Text, nullable=False),
        sa.Column("row", sa.Integer, nullable=False),
        sa.UniqueConstraint("user", "key", name="submission_user_key"),
    )
    op.create_table("controller_life", sa.Column("epoch", sa.Integer, primary_key=True))
    for table in APPEND_ONLY:
        for change in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{change.lower()} BEFORE {change} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
            )


def downgrade() -> None:
    for table in reversed(APPEND_ONLY):
        op.drop_table(table)
