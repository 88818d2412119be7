"""Rules on communication between ranks, judged on traces."""
