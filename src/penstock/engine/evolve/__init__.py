"""Applies events: functions of the state, an event and the position of its extent in the log.

Live traffic and recovery use the same functions, so a replay leads to the same state. They refuse nothing: whether an
event may happen was decided before it was logged.
"""
