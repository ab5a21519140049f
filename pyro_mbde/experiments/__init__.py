"""The paper's problems and measurements."""
