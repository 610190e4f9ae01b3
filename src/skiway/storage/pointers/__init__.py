"""Pointers: small versioned entries that map a key to a blob and change only by compare-and-set."""
