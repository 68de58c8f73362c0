__version__ = "0.0.0"  # `make clients-python` builds with the version of CHANGELOG.md
