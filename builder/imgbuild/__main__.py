"""`python -m imgbuild`."""

from imgbuild.cli import main

main()
