"""Checking and timing, and the figures that come of it."""
