"""Small nouns that every room may use: words for the user, files, downloads, progress, HTML."""
