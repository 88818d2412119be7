"""What `tightship doctor` looks at: this host, its installation, and the server that it reports to."""
