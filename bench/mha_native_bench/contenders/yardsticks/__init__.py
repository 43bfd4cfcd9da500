"""Calls that set a time beside ours without computing the case."""
