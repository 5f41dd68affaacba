"""Makes the wheel of the package `octavo` as pip asks for it (PEP 517), by the standard library
alone: `pip install .` then works without network."""

import base64
import glob
import hashlib
import os
import re
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
TAG = "py3-none-any"


def project():
    """The lines NAME = "VALUE" of pyproject.toml that the metadata needs."""
    with open(os.path.join(HERE, "pyproject.toml"), encoding="utf-8") as f:
        return dict(re.findall(r'^([\w-]+) = "(.*)"$', f.read(), re.M))


def digest(data):
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    facts = project()
    info = f"octavo-{facts['version']}.dist-info"
    files = {f"octavo/{os.path.basename(path)}": open(path, "rb").read()
             for path in sorted(glob.glob(os.path.join(HERE, "octavo", "*.py")))}
    files[f"{info}/METADATA"] = (f"Metadata-Version: 2.1\nName: octavo\nVersion: {facts['version']}\n"
                                 f"Summary: {facts['description']}\n"
                                 f"Requires-Python: {facts['requires-python']}\n").encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: octavo\nRoot-Is-Purelib: true\nTag: {TAG}\n".encode()
    rows = [f"{name},{digest(data)},{len(data)}" for name, data in files.items()]
    files[f"{info}/RECORD"] = ("\n".join(rows) + f"\n{info}/RECORD,,\n").encode()
    name = f"octavo-{facts['version']}-{TAG}.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, data in files.items():
            wheel.writestr(zipfile.ZipInfo(path, (2026, 1, 1, 0, 0, 0)), data)
    return name
