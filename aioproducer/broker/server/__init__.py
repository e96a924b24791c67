"""Connections: frames in, responses out, within bounded memory."""
