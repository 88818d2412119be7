"""A verdict, drawn: terminal, HTML, differences."""
