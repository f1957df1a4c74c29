"""What each command does, decided: reads the state, returns events and an answer, changes nothing."""
