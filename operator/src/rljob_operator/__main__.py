"""`python -m rljob_operator`"""

from rljob_operator.cli import main

main()
