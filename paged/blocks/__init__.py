"""The block manager: who owns which block. numpy and the standard library only."""
