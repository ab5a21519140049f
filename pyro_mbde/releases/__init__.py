"""Rows handed out: paid for, drawn, written, with a card that says what is promised."""
