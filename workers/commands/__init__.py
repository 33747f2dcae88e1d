"""One file a command; `main.py` is the program `backstay`."""
