"""Tables that are checked as they are read, columns that become numbers, private alignment."""
