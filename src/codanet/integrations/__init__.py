"""codanet in other libraries' terms."""
