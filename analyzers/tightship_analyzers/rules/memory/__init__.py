"""Rules on moving, filling and converting memory, judged on traces."""
