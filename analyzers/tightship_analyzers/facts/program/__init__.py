"""The traced program: threads, operators, Python frames, places."""
