"""What is kept of a fault before anything is changed: excerpts for the history, redacted copies in a directory of bounded size and age."""
