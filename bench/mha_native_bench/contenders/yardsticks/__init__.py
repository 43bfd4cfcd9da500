"""Contenders that do not compute the case: their time says what part of ours something takes."""
