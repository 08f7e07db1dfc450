"""What a run gives to others."""
