"""Work of the device by operator: kernels, copies, collectives."""
