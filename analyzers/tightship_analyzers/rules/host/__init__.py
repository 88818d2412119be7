"""Rules on what the host does to the device, judged on traces."""
