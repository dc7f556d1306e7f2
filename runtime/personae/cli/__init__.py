"""The command `personae`. Each subcommand is a module with `add_arguments(parser)` and `run(args) -> int`, imported when it is called."""
