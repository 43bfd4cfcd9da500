"""Other libraries, a few files for each. A file imports its library at the top."""
