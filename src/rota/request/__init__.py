"""Users' input: job files, sweep files and commands in, job specs out."""
