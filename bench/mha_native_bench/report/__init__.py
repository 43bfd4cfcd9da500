"""Measurements for the reader: text, JSON and pictures."""
