"""Text of the pages: answers, numbers, names, links."""
