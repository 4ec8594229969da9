"""Hooks that are told of events, and what each was sent."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "hook",
        sa.Column("name", sa.Text, primary_key=True, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("news", sa.Text, nullable=False),
        sa.Column("private", sa.Integer, nullable=False),
        sa.Column("secret", sa.Text, nullable=False),
        sa.Column("user", sa.Text, nullable=False),
        sa.Column("at_s", sa.Float, nullable=False),
        sa.Column("cursor", sa.Integer, nullable=False),
    )
    op.create_table(
        "delivery",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("hook", sa.Text, nullable=False),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("word", sa.Text, nullable=False),
        sa.Column("job_id", sa.Text),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("at_s", sa.Float, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("next_at_s", sa.Float, nullable=False),
        sa.Column("answer", sa.Text, nullable=False),
        sa.UniqueConstraint("hook", "seq", name="delivery_hook_seq"),
        sqlite_autoincrement=True,
    )
    op.create_index("delivery_due", "delivery", ["hook", "state", "next_at_s"])


def downgrade() -> None:
    op.drop_table("delivery")
    op.drop_table("hook")
