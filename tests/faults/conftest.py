from tests.local.conftest import longboat as longboat
