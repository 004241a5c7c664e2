"""One process of the pool. It imports nothing heavy before its environment is set."""

import importlib
import os
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any


def serve(connection: Connection, environment: dict[str, str], log: str) -> None:
    """Answers each message (function, arguments) with (row, what ails the device) until None."""
    os.environ.update(environment)
    _into(log)
    while True:
        try:
            message = connection.recv()
        except EOFError:
            return
        if message is None:
            return
        function, arguments = message
        row = called(function, arguments)
        ailment = device_ailment() if is_bad(row) else ""
        connection.send((row, ailment))
        if ailment:
            return


def called(function: str, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """The row that "module:function" gives, or its error as a row."""
    module, _, name = function.partition(":")
    try:
        return getattr(importlib.import_module(module), name)(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever it was, the other tasks go on
        traceback.print_exc()
        first = (str(error).strip().splitlines() or ["(no message)"])[0]
        return {"error": f"{type(error).__name__}: {first}"}


def is_bad(row: dict[str, Any]) -> bool:
    """Whether a row tells of a failure, after which the device may be lost to this process."""
    return "error" in row or row.get("status") == "failed" or bool(row.get("suspect"))


def device_ailment() -> str:
    """Why this process cannot use its GPU any more; empty where it can, or uses none.

    After an illegal access every later call fails, of whatever it is: one bad kernel would fail
    all that this process is given afterwards.
    """
    try:
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
            torch.ones(1, device="cuda").sum().item()
        if "cuda" in os.environ.get("JAX_PLATFORMS", "") and "jax" in sys.modules:
            sys.modules["jax"].numpy.ones(1).sum().item()
    except Exception as error:  # noqa: BLE001 - any error here says the same
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def _into(log: str) -> None:
    """Sends what is printed here, by libraries too, into a file: the pool's reports stay read."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
