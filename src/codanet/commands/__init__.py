"""One file a command, each with a `main(arguments) -> exit code`, thin over the library's own functions."""
