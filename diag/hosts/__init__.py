"""Whom we talk to and how: inventory, SSH, local, courier, HTTP over the same connection.

Light to import: Paramiko, httpx and pydantic are loaded by the modules that need them.
"""
