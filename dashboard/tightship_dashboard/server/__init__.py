"""The dashboard on the platform's server: application, routing, first paint."""
