"""Columns of records: ``send_many`` and Arrow data, appended without a Python object for each record."""
