"""Published recipes, one file per family."""
