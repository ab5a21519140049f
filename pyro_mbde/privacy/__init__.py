"""What is guaranteed, what it adds up to, and attacks on the claim. Only the attacks look at data."""
