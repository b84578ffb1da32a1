"""Slurm: the check before each job, its policy, its script and units, and what it asks of slurm.conf."""

START, DRAIN, BROKEN = 0, 86, 70
"""Exit codes of the check: the script drains on DRAIN alone. BROKEN is a failure of ours, as is any other."""

KEY = "prolog"
"""Of the check's answer among those that evidence keeps."""
