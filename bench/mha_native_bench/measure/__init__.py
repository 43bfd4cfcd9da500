"""Checks and times programs, and computes figures from the times."""
