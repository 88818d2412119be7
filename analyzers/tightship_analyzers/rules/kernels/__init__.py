"""Rules on what the device computes and how its work is launched, judged on traces."""
