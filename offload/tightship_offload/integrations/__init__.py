"""One line for who trains with Hugging Face `Trainer`, Accelerate or Lightning; each file imports its library."""
