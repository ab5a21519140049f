"""What is public about a table, and the way between a DataFrame and a tensor of rows."""
