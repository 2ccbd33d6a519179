"""Loading weights from files and saving them: published releases, readers, array names, strict checks."""
