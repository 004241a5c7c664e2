"""`python -m paged`: the `paged` command."""

from paged.cli import main

main()
