"""What Alembic runs to bring a connection that the store opened to the newest schema."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
