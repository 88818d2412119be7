"""What is drawn: the colours, the bars and the charts. Each takes a prepared result and returns something to show."""
