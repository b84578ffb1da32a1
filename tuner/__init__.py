"""tuner: plans, applies, verifies and undoes the settings of a GPU node."""

import time

__version__ = "0.1.0"

STARTED = time.time_ns()
"""When this process began to load our code, in ns of the wall clock."""
