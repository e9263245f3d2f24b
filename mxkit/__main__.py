"""`python -m mxkit` is the `mxkit` command."""

from mxkit.cli import main

main()
