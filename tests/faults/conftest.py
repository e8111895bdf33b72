from tests.local.conftest import windlass as windlass
