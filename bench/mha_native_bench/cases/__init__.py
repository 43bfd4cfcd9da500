"""What is timed: shapes, their inputs and the results that are expected."""
