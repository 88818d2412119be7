"""`python -m tightship_platform`: the command line."""

from tightship_platform.cli import main

main()
