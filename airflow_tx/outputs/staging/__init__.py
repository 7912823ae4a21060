"""Task output between processing and commit."""
