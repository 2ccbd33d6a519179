"""Files to models and back: published releases, readers, array names, strict loading and saving."""
