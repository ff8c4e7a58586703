"""Numbers as people read them."""


def rate(value: float) -> str:
    """Tokens/s with three or four digits."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def seconds(value: float) -> str:
    """A duration."""
    if value < 0.9995:
        return f"{1000 * value:.0f} ms"
    if value < 99.95:
        return f"{value:.2f} s" if value < 9.995 else f"{value:.1f} s"
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.0f} h"


def milliseconds(value: float) -> str:
    """Seconds, told in ms."""
    ms = 1000 * value
    return f"{ms:.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}"


def short(number: float) -> str:
    """A large number in thousands, millions and so on, with three digits."""
    for unit in ("", " k", " M", " G"):
        if number < 999.5 or unit == " G":
            break
        number /= 1000
    return f"{number:.0f}{unit}" if not unit or number >= 99.95 else f"{number:.{1 if number >= 9.995 else 2}f}{unit}"


def size(count: int) -> str:
    """Bytes, in units of a thousand."""
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 99.95 else f"{value:.1f} {unit}"


def percent(share: float) -> str:
    """A share of 0 to 1."""
    return f"{100 * share:.0f}%"


def count(number: float) -> str:
    """A whole number with its thousands apart."""
    return f"{int(number):,}"
