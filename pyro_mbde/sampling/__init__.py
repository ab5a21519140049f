"""Draws that may be handed out: exact or constant-time, last states of fresh chains, draws from posteriors."""
