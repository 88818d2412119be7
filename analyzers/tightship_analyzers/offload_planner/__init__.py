"""Which layers to keep on the device, and how the training will then run: profile → simulate → plan."""
