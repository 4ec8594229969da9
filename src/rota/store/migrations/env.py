"""The script with which Alembic migrates an opened connection to the newest schema."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
