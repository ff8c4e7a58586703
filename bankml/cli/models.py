"""`bankml models`: the model files at hand."""


def arguments(parser):
    """What the command takes."""
    parser.add_argument("--json", action="store_true", help="print one JSON object: {folders, models, known}")


def run(args) -> int:
    """One line per model on stdout: name, size, type, architecture, path; a file that will not run shows why."""
    import json
    import sys

    from bankml.models import KNOWN, at_hand, describe, folders

    models = [describe(path) for path in at_hand()]
    if args.json:
        known = [{"name": k.name, "alias": k.alias, "package": k.requirement, "types": list(k.kinds)} for k in KNOWN]
        print(json.dumps({"folders": [str(f) for f in folders()], "models": models, "known": known}))
        return 0
    width = max((len(model["name"]) for model in models), default=0)
    for model in models:
        size = f"{(model['bytes'] or 0) / 1e6:9.1f} MB"
        about = f"will not run: {model['error']}" if model["error"] else f"{model['type']}  {model['arch']}"
        print(f"{model['name']:{width}} {size}  {about}  {model['path']}")
    if not models:
        print("bankml: no models yet; 'bankml pull smollm2' fetches the default one", file=sys.stderr)
    return 0
