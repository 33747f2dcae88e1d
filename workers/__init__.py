"""What people start: the worker, the command line, the embedded server, the demo."""
