"""For the tests of this project and of its users: real servers on this machine, faults, and waiting for conditions."""
