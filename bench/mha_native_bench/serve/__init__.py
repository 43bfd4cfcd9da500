"""Servers over HTTP: this library's and others, under the same clients."""
