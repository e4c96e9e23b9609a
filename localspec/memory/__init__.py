"""What memory there is, and what a pair needs of it."""
