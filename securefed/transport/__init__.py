"""Messages between parties: the message, a party's link, the clock, and the in-process transport."""
