"""What runs on a host: the agent with its sources, the launcher, on-demand Kineto captures. Never imports torch."""
