"""Stands in for a source archive's build backend while pip downloads it.

`pip download` asks the backend for the package's name and version, although nothing is built. The archive's own PKG-INFO
has them, so neither the real backend nor a compiler is needed.
"""

import email
import pathlib
import shutil


def get_requires_for_build_wheel(config_settings=None):
    return []


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    fields = email.message_from_string(pathlib.Path("PKG-INFO").read_text())
    # Some versions of pip take the name from the folder's.
    info = pathlib.Path(metadata_directory) / f"{fields['Name'].replace('-', '_')}-{fields['Version']}.dist-info"
    info.mkdir()
    shutil.copyfile("PKG-INFO", info / "METADATA")
    return info.name
