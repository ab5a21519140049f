"""Draws that may be handed out: exact, of constant time, last states of fresh chains, of posteriors."""
