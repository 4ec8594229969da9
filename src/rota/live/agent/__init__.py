"""The agent of one node: the only thing that starts, pauses, continues and kills workers there."""
