"""Rules on how devices are held, judged on samples."""
