"""The HTTP face: poll, cancel, list, and honest answers to overload."""
