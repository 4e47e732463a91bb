"""Host side: runs on the diagnosed machine. Python 3.8, standard library only, leaves nothing behind."""
