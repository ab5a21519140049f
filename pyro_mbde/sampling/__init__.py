"""Draws that may be handed out: exact, constant-time, last states of fresh chains, of posteriors."""
