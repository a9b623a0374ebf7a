"""The version, here so that a file or a table can name it without importing the package."""

__version__ = "0.1.0"
