"""One file per question that somebody comes with."""
