"""One file a paper experiment."""
