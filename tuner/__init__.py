"""tuner: plans, applies, verifies and undoes the settings of a GPU node."""

__version__ = "0.1.0"
