"""`Mutant`: one fault, as an edit of one place in the source of one module."""

from dataclasses import dataclass


class StaleMutantError(ValueError):
    """The source that a mutant was made for has changed: mend the mutant."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault, seeded by replacing one snippet of source.

    Attributes:
        name: what it is called in a report.
        kind: which kind of fault; a key of `paged.conformance.mutants.likely.LIKELY`.
        module: the module that is edited, for example "paged.backends.xla.attend"; or a file that
            a backend is compiled from, "paged.backends.cpu:src/attend.h".
        before: the snippet as it stands, exactly once in the module.
        after: what stands there instead.
        layout: the layout that it is tried on.
        dtype: of the queries that are tried first; None for the suite's order.
        likely: patterns of cases to be tried first, in place of the kind's.
    """

    name: str
    kind: str
    module: str
    before: str
    after: str
    layout: str = "flashinfer"
    dtype: str | None = None
    likely: tuple[str, ...] = ()

    def applied(self, source: str) -> str:
        """The module's source with the fault in it.

        Raises:
            StaleMutantError: the snippet does not stand in the source exactly once.
        """
        count = source.count(self.before)
        if count != 1:
            raise StaleMutantError(
                f"mutant {self.name!r}: {self.module} has {count} of {self.before!r}, expected "
                "exactly one"
            )
        return source.replace(self.before, self.after)
