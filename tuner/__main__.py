"""`python -m tuner`: what evidence answers needs no command line."""

import sys

from tuner.fast import finish

finish(sys.argv[1:])

from tuner.cli import main  # noqa: E402

sys.exit(main())
