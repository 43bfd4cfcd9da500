"""Objects whose fields are known, so that no constructor runs."""

from __future__ import annotations

# bare(cls): an instance of `cls` without a field, as copy and pickle make it. The caller sets all of its fields.
bare = object.__new__
