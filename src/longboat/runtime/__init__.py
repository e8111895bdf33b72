"""Everything that ships into users' images: driver, agents, the gang and what they share.

Standard library only, Python 3.9: an image needs nothing but Python. `zipapp` packs this package with
`longboat/__init__.py`; linters and type checkers enforce both rules.
"""

import os

HERE = os.path.dirname(os.path.abspath(__file__))
IMPORT_PATH = os.path.dirname(os.path.dirname(HERE))
"""The directory that `import longboat` needs on sys.path."""
RANK_PATH = os.path.join(HERE, "rank_path")
"""The directory that a rank's PYTHONPATH begins with; holds the `sitecustomize` of every rank."""
