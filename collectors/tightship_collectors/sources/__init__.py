"""Where samples come from: one file per source. A source reads; it neither judges nor stores."""
