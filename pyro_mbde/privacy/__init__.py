"""What is guaranteed and what it adds up to. Nothing here looks at data."""
