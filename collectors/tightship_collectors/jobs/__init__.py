"""The jobs of this host: processes, run directories, ranks, and the devices they hold."""
