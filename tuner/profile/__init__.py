"""Profiles: YAML files that say what every knob's targets shall hold, each value with why and source."""

from __future__ import annotations

from tuner.profile.load import Profile, load_profile

__all__ = ["Profile", "load_profile"]
