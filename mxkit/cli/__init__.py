"""The `mxkit` command."""

from mxkit.cli.commands import main as main
