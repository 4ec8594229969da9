"""Machines that have joined the cluster, and invitations to join. Tokens are hashed."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "invitation",
        sa.Column("token_hash", sa.Text, primary_key=True, nullable=False),
        sa.Column("until_s", sa.Float, nullable=False),
        sa.Column("used_by", sa.Text),
    )
    op.create_table(
        "member",
        sa.Column("node", sa.Text, primary_key=True, nullable=False),
        sa.Column("token_hash", sa.Text, nullable=False, unique=True),
        sa.Column("joined_s", sa.Float, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("member")
    op.drop_table("invitation")
