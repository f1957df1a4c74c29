"""All types that the rooms share: settings, commands (verbs), events (past participles), answers, kinds of events.

Everything here is a plain value. Times are nanoseconds since the epoch, handed in from outside. Queues and other
names that repeat are numbers, defined once by an event.
"""
