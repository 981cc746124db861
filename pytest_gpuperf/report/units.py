"""Numbers as people read them: SI values become prefixed numbers of four significant digits."""

_DECIMAL = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_TIME = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_PREFIXED = frozenset({"B/s", "FLOP/s", "Hz", "W", "J", "token/s"})


def format_count(count: int, thing: str, things: str = "") -> str:
    """So many of a thing: 1 test, 2 tests; 2 launches, if its plural is given."""
    return f"{count} {thing if count == 1 else things or f'{thing}s'}"


def format_value(value: float, unit: str) -> str:
    """Formats a value of an SI unit: 356.2 GB/s, 27.03 us, 1.40x, 12 %, 64 MiB; others get no prefix."""
    if unit == "B":
        return format_bytes(value)
    if unit == "x":
        return f"{_format_digits(value, 3)}x"
    if unit == "fraction":
        return f"{100 * value:.4g} %"
    rounded = float(f"{value:.4g}")  # before the prefix is chosen, else 999.96 us reads "1000 us"
    scale, symbol = choose_scale(rounded, unit)
    return f"{_format_digits(rounded / scale)} {symbol}"


def choose_scale(value: float, unit: str) -> tuple[float, str]:
    """Return what a value of the unit is divided by where it is drawn, and the symbol of what results.

    A value of 3.6e11 B/s gives 1e9 and GB/s. Bytes are divided by a power of 1024, fractions by 0.01.
    """
    rounded = abs(float(f"{value:.4g}"))
    if unit == "s":
        return next((entry for entry in _TIME if rounded >= entry[0]), _TIME[-1])
    if unit in _PREFIXED:
        scale, prefix = next((entry for entry in _DECIMAL if rounded >= entry[0]), _DECIMAL[-1])
        return scale, prefix + unit
    if unit == "B":
        power = next((power for power in reversed(range(len(_BINARY))) if rounded >= 1024**power), 0)
        return float(1024**power), _BINARY[power]
    return (0.01, "%") if unit == "fraction" else (1.0, unit)


def format_bytes(count: float) -> str:
    """Formats a size by binary prefixes, without a fraction where there is none: 64 MiB, 1.5 GiB, 12 B."""
    power = 0
    while abs(float(f"{count / 1024**power:.4g}")) >= 1024 and power < len(_BINARY) - 1:
        power += 1
    return f"{count / 1024**power:.4g} {_BINARY[power]}"


def format_percent(fraction: float, *, signed: bool = False) -> str:
    """Formats a fraction as a percentage with one decimal: 16.3 %, or +16.3 % where its sign is news."""
    percent = round(100 * fraction, 1) + 0.0  # + 0.0 makes -0.0 a plain zero
    return f"{percent:+.1f} %" if signed else f"{percent:.1f} %"


def _format_digits(value: float, significant: int = 4) -> str:
    return f"{value:#.{significant}g}".rstrip(".")
