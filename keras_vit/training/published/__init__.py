"""The recipes that others published, one file per family."""
