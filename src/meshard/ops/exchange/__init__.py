"""Rows that positions name, which pass between the devices that hold them and those that ask."""
