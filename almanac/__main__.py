"""`python -m almanac` is the same as `almanac`."""

from almanac.cli import main

main()
