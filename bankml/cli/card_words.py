"""What a command that runs a model says of the cards: which it may use, which have joined, what they did."""

from bankml import environment


def wanted(args):
    """The `gpu` of `Weights.open`. --gpu without a value means what BANKML_GPU names, if it does."""
    if args.no_gpu:
        return False
    if args.gpu:
        asked = environment.gpu(args.gpu)
        return False if asked == "off" else asked
    asked = environment.gpu()
    if args.gpu is None:
        return {"auto": None, "off": False}.get(asked, asked) if isinstance(asked, str) else asked
    return "auto" if asked == "off" else asked


def joining(args, notes: list[str]) -> list[str]:
    """Lines on the devices that were asked: with --gpu, and where BANKML_GPU names some."""
    return notes if args.gpu is not None or isinstance(wanted(args), list) else []


def statistics(report: dict | None) -> list[str]:
    """A line on each card that has joined, from `Weights.card_report`."""
    if report is None:
        return []
    total = report["cpu_rows"] + sum(card["rows"] for card in report["cards"])
    return [_line(card, at, total, report["shares"]) for at, card in enumerate(report["cards"])]


def _line(card, at, total, shares):
    parts = [f"{card['name']}: {card['rows'] / max(1, total):.1%} of {total} rows"]
    given = {shape: each[at] for shape, each in shares.items() if each[at] > 0}
    parts.append("share " + (", ".join(f"{share:.2f} of {shape}" for shape, share in given.items()) or "0"))
    used, most = (card[key] / 1e6 for key in ("bytes", "bytes_limit"))
    parts.append(f"{used:.1f} of {most:.0f} MB, limit {card['limit']:g}, busy {card['busy_s']:.2f} s")
    parts.append(f"left out of {card['skipped']} products to rest" + (", resting" if card["resting"] else ""))
    if card["dropped"]:
        parts.append(f"dropped: {card['dropped']}")
    return "; ".join(parts)
