"""The command line: arguments in, text out. No other package prints."""
