"""`tightship run`: arms a command and launches it, and never stands in its way."""
