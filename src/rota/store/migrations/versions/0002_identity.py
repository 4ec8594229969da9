"""The identity of a log, which distinguishes its jobs' files from those of other logs."""

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    table = op.create_table("identity", sa.Column("identity", sa.Text, primary_key=True))
    op.bulk_insert(table, [{"identity": secrets.token_hex(16)}])
    for change in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER identity_no_{change.lower()} BEFORE {change} ON identity "
            "BEGIN SELECT RAISE(ABORT, 'identity is append-only'); END"
        )


def downgrade() -> None:
    op.drop_table("identity")
