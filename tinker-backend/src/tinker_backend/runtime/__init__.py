"""The runtime: a process of its own that trains and samples."""
