"""mooncake.engine, served by railhop."""

from railhop import _engine
from railhop._engine import *

globals().update({name: value for name, value in vars(_engine).items() if not name.startswith("_")})
