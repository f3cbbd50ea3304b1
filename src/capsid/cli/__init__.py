"""The command line: one module per verb. Verbs parse arguments and print; other packages do the work."""
