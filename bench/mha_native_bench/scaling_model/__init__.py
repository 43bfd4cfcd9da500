"""What more machines give: a cost model whose constants are measured here. docs/scaling.md says what comes of it."""
