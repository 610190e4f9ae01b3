"""The commands that call a server about what is in its lake: one group for each kind of object."""
