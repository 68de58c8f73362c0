"""Runs the steps with the client that CLIENT names: module.Class."""

import importlib
import os

import steps

module, name = os.environ["CLIENT"].split(".")
steps.Steps(getattr(importlib.import_module(module), name)()).main()
