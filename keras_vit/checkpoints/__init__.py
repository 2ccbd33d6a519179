"""Files to models and back: published releases, readers, names, strict loading and saving."""
