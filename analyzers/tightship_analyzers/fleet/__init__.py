"""Over many runs: where their device time went, and what to do first."""
