"""Groups of commands that name the closest one where a word is none of theirs."""

import click

from rota.errors import did_you_mean


class CommandGroup(click.Group):
    """A group whose message for an unknown command says which may have been meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first argument names. UsageError with the closest one."""
        if (
            args
            and not args[0].startswith("-")
            and args[0] not in (names := self.list_commands(ctx))
        ):
            hint = did_you_mean(args[0], names)
            raise click.UsageError(f"there is no command {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)
