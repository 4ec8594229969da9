"""What users write, read: job files, sweep files and commands in, job specs out."""
