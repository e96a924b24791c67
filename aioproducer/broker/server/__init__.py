"""Connections: read frames and write responses in bounded memory."""
