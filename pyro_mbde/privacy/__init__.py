"""What is guaranteed and what it adds up to: pure numbers, without torch."""
