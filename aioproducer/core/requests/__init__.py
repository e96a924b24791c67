"""One connection: its states, API versions, request slots, correlation ids and retries."""
